"""Assign new images to the categories of a finished run, or to -1 if their category may be new.

They are embedded with the run's networks: its encoder and, if it was trained, its model. A watched
folder is polled; each image is assigned when it arrives or changes.

Shapes: N images of the run, M new ones, D columns, K categories.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, as_stored_embeddings
from shoal.clustering.calibration import Calibration, seen_probability
from shoal.clustering.categories import assign_new
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.sums import unit_points
from shoal.data.collection import Collection
from shoal.data.pixels.loading import file_state, load_pixels, none_readable
from shoal.data.readers import read_collection, read_embeddings
from shoal.data.readers.boxes import NO_BOXES, BoxOptions, refuse_boxes
from shoal.data.readers.embeddings import EMBEDDING_SUFFIXES
from shoal.data.readers.folders import (
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    check_folder,
    list_folder,
)
from shoal.data.readers.layouts import is_list
from shoal.data.readers.shards import is_shards
from shoal.data.readers.tables import PATH_COLUMNS, is_frame, read_table, require_column
from shoal.data.storage import absolute, as_address
from shoal.device import AnyDevice, choose_device
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import EMBEDDING, SILENT, Reporter
from shoal.discovery.results import TRAINED, ClusterSettings
from shoal.discovery.trained.evaluation import blend
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import Encoder, ImageRows, embed
from shoal.errors import DataError, UsageError, count, first_few
from shoal.files import AnyPath
from shoal.methods.registry import get_method
from shoal.runs import DECIMALS, TABLE, UNREADABLE, Assignment, Run, column, damaged
from shoal.settings import Plain
from shoal.training.loop import load_weights, read_checkpoint
from shoal.training.model import Model, TaskShape

# Default share of the run's own images with an outlier score above the threshold
OUTLIER_SHARE = 0.01

# Images embedded at a time; their tokens are in memory together
EMBED_BATCH = 256

# Images assigned at a time; their embeddings are in memory together. Results do not depend on it.
ASSIGN_BATCH = 64 * EMBED_BATCH

UNREADABLE_ROW = Assignment(
    path="",
    category_id=UNLABELED,
    category="",
    is_novel=False,
    confidence=0.0,
    outlier_score=float("nan"),
    status=UNREADABLE,
)

# The rows, and the unreadable images with the reason
Assigned = tuple[list[Assignment], dict[str, str]]


class Networks:
    """The networks that embed images as a run did: the frozen encoder unless its embeddings are not
    used, and the model if the result was trained."""

    def __init__(self, run: Run, settings: DiscoverySettings, device: torch.device) -> None:
        chosen = settings.method_settings
        about: Plain = {"frozen_weight": 1.0}
        self.model: Model | None = None
        self.frozen: Encoder | None = None
        try:
            if has_model(run):
                about = run.json("model")
                if not 0 <= about["frozen_weight"] <= 1:
                    raise UsageError("frozen_weight: expected a number in [0, 1]")
                chosen = replace(settings.trained, n_tail_blocks=about["n_tail_blocks"])
                model = get_method(settings.method).build(chosen, TaskShape(**about["shape"]))
                file = run.path / "model.safetensors"
                load_weights(model, read_checkpoint(file)[0], str(file))
                self.model = model.to(device).eval()
            if about["frozen_weight"] > 0:
                self.frozen = load_encoder(
                    chosen.encoder,
                    n_tail_blocks=about.get("n_tail_blocks"),
                    input_size=chosen.input_size,
                ).to(device)
        except UsageError as error:
            # A damaged config.yaml or model.json, not a mistake of the user.
            raise damaged(run.path, str(error)) from error
        # The weight of the frozen embeddings in the blend with the trained ones
        self.frozen_weight = float(about["frozen_weight"])
        # The category id of each output of the model's classifier, -1 for an output without images;
        # None without a classifier
        self.classifier = np.array(about["classifier"]) if about.get("classifier") else None

    def embed(self, pixels: ImageRows) -> Tensor:
        """Return unit embeddings (M, D), computed as the run's were."""
        if self.model is None:
            assert self.frozen is not None
            return embed(pixels, self.frozen)
        trained = self.model.embed(pixels)
        if self.frozen is None:
            return trained
        return blend(embed(pixels, self.frozen), trained, self.frozen_weight)

    def predict(self, embeddings: Tensor) -> Ints:
        """Return the category ids (M,) that the classifier predicts for unit embeddings (M, D), -1
        for an output without images of the run."""
        assert self.model is not None
        assert self.classifier is not None
        with torch.inference_mode():
            outputs = self.model.predict(embeddings.float())
        assert outputs is not None
        numbers = outputs.cpu().numpy()
        is_used = numbers < len(self.classifier)
        return np.where(is_used, self.classifier[np.where(is_used, numbers, 0)], -1)


def has_model(run: Run) -> bool:
    return run.provenance.get("result") == TRAINED or run.has("model.json")


class Assigner:
    """Assigns new images to the categories of a finished run, which is loaded once for all calls.

    If the run has a classifier, its prediction is the category of a new image. Otherwise the
    nearest images of the run vote. Their vote also overrides the classifier if it goes to a
    category that a review created, which the classifier does not know. An image whose outlier score
    exceeds `threshold` gets the category -1 (possibly a new one); the threshold is chosen so
    that `outlier_share` of the run's own images exceed it. Categories are never added, renamed or
    renumbered.
    """

    def __init__(
        self,
        run: Run,
        *,
        outlier_share: float = OUTLIER_SHARE,
        device: AnyDevice = None,
        reporter: Reporter = SILENT,
    ) -> None:
        if not 0 <= outlier_share < 1:
            raise UsageError(f"outlier_share: found {outlier_share}, expected a number in [0, 1)")
        self.run = run
        self.reporter = reporter
        self.device = choose_device(device)
        categories = run.categories
        rows = run.assignments
        self.classes = [category.category for category in categories]
        # The id of each category; ids have gaps if a review merged some
        self.ids = [category.category_id for category in categories]
        self.n_known = sum(not category.is_novel for category in categories)
        self._position_of = {number: position for position, number in enumerate(self.ids)}
        positions = self._positions(column(rows, "category_id"))
        is_member = positions != UNLABELED  # (N,) rejected images do not vote
        self._points = unit_points(run.embeddings(), device=self.device)
        if not is_member.all():
            self._points = self._points[torch.from_numpy(is_member).to(self.device)]
        self._categories = positions[is_member]
        self._is_apart = np.array(column(rows, "is_apart"), dtype=bool)[is_member]
        self._mixed_probability = np.array([row.mixed_probability for row in categories])  # (K,)
        scores = np.array(column(rows, "outlier_score"))
        if np.isnan(scores).any():
            raise damaged(run.path / TABLE, "outlier_score: an image has none, expected a number")
        self.threshold = float(np.quantile(scores, 1 - outlier_share))
        found_ids = [category.category_id for category in Run(run.path).categories]
        self._created_by_review = [
            position for position, number in enumerate(self.ids) if number not in found_ids
        ]
        self._read_calibration(found_ids)

    def _positions(self, ids: Sequence[int]) -> Ints:
        """Return the position in `ids` of each category id; -1 for an unknown id."""
        return np.array([self._position_of.get(number, UNLABELED) for number in ids])

    def _read_calibration(self, found_ids: Sequence[int]) -> None:
        """Read calibration.json, whose scales are per category of the unreviewed run.

        A category that the review created is treated as novel; one that became known in the review
        gets the average scale, 1.
        """
        plain = self.run.json("calibration")
        calibration = Calibration.from_dict(plain)
        if len(calibration.scale) != len(found_ids):
            raise damaged(
                self.run.path / "calibration.json", f"expected {len(found_ids)} categories"
            )
        scale_of = dict(zip(found_ids, np.nan_to_num(calibration.scale, nan=1.0), strict=True))
        scale = np.array([scale_of.get(number, 1.0) for number in self.ids])
        scale[self.n_known :] = np.nan
        self._calibration = replace(calibration, scale=scale)
        self._seen: dict[str, float] | None = plain.get("seen")

    @cached_property
    def settings(self) -> DiscoverySettings:
        """The settings of the run; raise if it was made from precomputed embeddings."""
        if "method" not in self.run.config:
            raise UsageError(
                f"{self.run.path}: the run was made from precomputed embeddings, so it has no "
                "encoder; embed the images in the same way, and give a file of embeddings (npy, "
                "npz or parquet)"
            )
        return self.run.config_as(DiscoverySettings)

    @cached_property
    def shift(self) -> ShiftSettings:
        """The mean-shift settings of the run, such as the number of neighbors."""
        if "method" in self.run.config:
            return self.settings.shift
        return self.run.config_as(ClusterSettings).inference.shift

    @cached_property
    def networks(self) -> Networks:
        """The run's encoder and, if it was trained, its model."""
        return Networks(self.run, self.settings, self.device)

    def assign(
        self, images: Any, *, allow_missing: bool = False, boxes: BoxOptions = NO_BOXES
    ) -> Assigned:
        """Assign a folder of images, one image, a table of paths, shards, or embeddings; or the
        `boxes` in images; or a list of paths, images or embeddings.

        Return a row per readable image of a folder, table or shard, or per box in them; for a list,
        a row per entry in its order, including unreadable and repeated images. Raise for many
        missing paths in a table, or damaged shards, unless `allow_missing`.
        """
        if not isinstance(images, str | os.PathLike):
            refuse_boxes(boxes, has_files=False)
            return self._assign_list(images)
        path = Path(images)
        suffix = path.suffix.lower()
        has_encoder = "method" in self.run.config
        if suffix in (".npy", ".npz") or (not has_encoder and suffix in EMBEDDING_SUFFIXES):
            refuse_boxes(boxes, has_files=False)
            embeddings = read_embeddings(path)
            return self.assign_embeddings(embeddings.names, embeddings.x), {}
        _ = self.networks  # without networks, raise before images are listed
        address = as_address(images)
        labels: Literal[False] | None = False
        if suffix in TABLE_SUFFIXES and not is_shards(images):
            labels = None  # the table lists the images
        if suffix in IMAGE_SUFFIXES and (address is not None or path.is_file()):
            images = [address or path]
        collection = read_collection(images, labels, allow_missing=allow_missing, boxes=boxes)
        for note in collection.notes:
            self.reporter.report(f"note: {note}")
        rows, skipped = self.assign_images(collection)
        if not rows:
            raise none_readable(skipped)
        return rows, {**collection.left_out, **skipped}

    def _assign_list(self, images: Any) -> Assigned:
        """Assign a list, array or data frame of images, or the rows of an array of embeddings.

        Return a row per entry, with the user's path; raise for a path that is not a file.
        """
        if is_frame(images):
            table = read_table(images)
            images = list(table.columns[require_column(table, PATH_COLUMNS, None, "path")])
        if isinstance(images, np.ndarray) and images.dtype.kind == "f" and images.ndim == 2:
            names = [f"row-{i:06d}" for i in range(len(images))]
            return self.assign_embeddings(names, images), {}
        has_paths = False
        if is_list(images):
            has_paths = len(images) > 0 and isinstance(next(iter(images)), str | os.PathLike)
        collection = read_collection(images, False, allow_missing=has_paths)
        paths = names = list(collection.names)
        if has_paths:
            paths = [os.fspath(path) for path in images]
            name_of = {str(collection.source(i)): name for i, name in enumerate(names)}
            names = [name_of.get(str(absolute(path)), "") for path in paths]
            absent = [f"path {i}: {path}" for i, path in enumerate(paths) if not names[i]]
            if absent:
                raise DataError(
                    f"missing or not a file: {len(absent):,} of "
                    f"{count(len(paths), 'listed image')} ({first_few(absent, separator='; ')})"
                )
        rows, skipped = self.assign_images(collection)
        row_of = {row.path: row for row in rows}
        path_of = dict(zip(names, paths, strict=True))
        listed = [
            replace(row_of.get(name, UNREADABLE_ROW), path=path)
            for name, path in zip(names, paths, strict=True)
        ]
        return listed, {path_of[name]: reason for name, reason in skipped.items()}

    def assign_images(self, collection: Collection) -> Assigned:
        """Assign images, whose labels are ignored; images that cannot be decoded have no row."""
        _ = self.networks  # without networks, raise before images are decoded
        with self.reporter.progress("decoding images", "images") as progress:
            pixels = load_pixels(collection, self.settings.pixel_size, progress=progress)
        rows: list[Assignment] = []
        with self.reporter.progress(EMBEDDING, "images") as progress:
            for first in range(0, len(pixels), ASSIGN_BATCH):
                last = min(first + ASSIGN_BATCH, len(pixels))
                parts: list[Tensor] = []
                for start in range(first, last, EMBED_BATCH):
                    stop = min(start + EMBED_BATCH, last)
                    parts.append(self.networks.embed(pixels[start:stop]).cpu())
                    progress(stop, len(pixels))
                rows += self.assign_embeddings(pixels.names[first:last], torch.cat(parts).numpy())
        return rows, pixels.skipped

    def assign_embeddings(self, names: Sequence[str], x: ArrayLike) -> list[Assignment]:
        """Assign embeddings (M, D) from the same encoder as the run's; return a row per name.

        A memory map is read one block of rows at a time.
        """
        stored = as_stored_embeddings(x)
        expected = (len(names), self._points.shape[1])
        if stored.shape != expected:
            raise DataError(
                f"embeddings: found shape {stored.shape}, expected {expected}, a row per name with "
                "as many columns as the run's; use the same encoder as for the run"
            )
        rows: list[Assignment] = []
        for start in range(0, len(names), ASSIGN_BATCH):
            block = slice(start, start + ASSIGN_BATCH)
            rows += self._assign_block(names[block], stored[block])
        return rows

    def _assign_block(self, names: Sequence[str], x: Floats) -> list[Assignment]:
        new = unit_points(x, device=self.device, min_rows=1).to(self._points.dtype)
        predicted = None
        # Embeddings are assigned without the networks unless there is a classifier.
        if has_model(self.run) and self.run.json("model").get("classifier"):
            predicted = self._positions(self.networks.predict(new).tolist())
        categories, members, neighbors = assign_new(
            new,
            self._points,
            self._categories,
            self.n_known,
            self.shift.n_neighbors,
            predicted,
            self._created_by_review,
        )
        is_labeled = np.zeros(len(categories), dtype=bool)
        confidence = self._calibration.confidence(members.confidence, categories, is_labeled)
        if self._seen is not None:
            confidence = confidence * seen_probability(self._seen, members.outlier_score)
        apart_share = self._is_apart[neighbors.indices.cpu().numpy()].mean(axis=1)  # (M,)
        # If the category may be a mixture of two, an image near the second part is less likely to
        # be correct.
        confidence = confidence * (1 - self._mixed_probability[categories] * apart_share)
        # Round as in the run's table, from which the threshold was computed.
        is_outlier = np.round(members.outlier_score, DECIMALS) > self.threshold
        names_of = [*self.classes, ""]  # the last one for UNLABELED
        rows = []
        for i, name in enumerate(names):
            category = int(categories[i])
            row = Assignment(
                path=name,
                category_id=self.ids[category],
                category=self.classes[category],
                is_novel=category >= self.n_known,
                confidence=float(confidence[i]),
                outlier_score=float(members.outlier_score[i]),
                nearest_known=names_of[members.nearest_known[i]],
                nearest_known_similarity=float(members.nearest_known_similarity[i]),
                second_category=names_of[members.second[i]],
            )
            if is_outlier[i]:
                row = replace(
                    row,
                    category_id=UNLABELED,
                    category="",
                    is_novel=True,
                    confidence=0.0,
                    second_category=row.category,
                )
            rows.append(row)
        return rows


class Watch:
    """Polls a local folder and assigns the images that arrive in it."""

    def __init__(self, assigner: Assigner, folder: AnyPath) -> None:
        self.assigner = assigner
        self.root = check_folder(folder)
        self._seen: dict[str, str | None] = {}
        self._assigned: dict[str, str | None] = {}

    def poll(self) -> Assigned:
        """Assign the images that arrived or changed since the last call.

        An image is assigned when two successive calls find its file in the same state: it is then
        no longer being written.
        """
        states = {name: file_state(f"{self.root}/{name}") for name in list_folder(self.root).names}
        ready = tuple(
            name
            for name, state in states.items()
            if state is not None and self._seen.get(name) == state != self._assigned.get(name)
        )
        self._seen = states
        if not ready:
            return [], {}
        self._assigned |= {name: states[name] for name in ready}
        collection = Collection(ready, np.full(len(ready), UNLABELED), (), root=self.root)
        try:
            return self.assigner.assign_images(collection)
        except DataError as error:  # embeddings without a direction; later images may be fine
            return [], dict.fromkeys(ready, str(error))
