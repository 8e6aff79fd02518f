"""Assign new images to the categories of a finished run: existing ids only, -1 for possibly new.

A folder may be watched: images that arrive in it are assigned, each once.

N images of the run, M new ones, D columns, K categories.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, as_stored_embeddings, each_row, name_rows
from shoal.clustering.calibration import Calibration
from shoal.clustering.categories import NONE, assign_newcomers
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.never_seen import SeenProbability
from shoal.clustering.sums import unit_points
from shoal.data.collection import Collection
from shoal.data.pixels import Pixels, Skipped, load_pixels
from shoal.data.pixels.store import file_state
from shoal.data.readers import read_collection, read_embeddings
from shoal.data.readers.embeddings import EMBEDDING_SUFFIXES
from shoal.data.readers.folders import (
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    check_folder,
    list_folder,
    list_remote_folder,
)
from shoal.data.readers.shard_patterns import is_shards
from shoal.data.storage.addresses import as_address
from shoal.device import choose_device, encoder_device
from shoal.discovery.cluster_embeddings import ClusterSettings
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.networks import Networks, load_networks, read_model
from shoal.discovery.read_and_embed import EMBEDDING
from shoal.discovery.reporter import NOTE, SILENT, Reporter
from shoal.distributed import together
from shoal.errors import DataError, UsageError
from shoal.progress import Progress
from shoal.runs import DECIMALS, Assignment, Run, column, damaged, table_files

OUTLIER_SHARE = 0.01
"""Share of the run's own images that lie beyond the threshold."""

IMAGES_AT_ONCE = 256
"""Images that are embedded at a time, because their tokens are held."""

ROWS_AT_ONCE = 64 * IMAGES_AT_ONCE
"""Images that are assigned at a time, because their embeddings are held; it changes no row."""

Assigned = tuple[list[Assignment], tuple[Skipped, ...]]
"""A row per image that could be read, and the images that could not."""


class Assigner:
    """A finished run, ready for new images; weights and embeddings are loaded once for all calls.

    A new image joins the category that the run's classifier predicts or, in a run without one, the
    category most common among its nearest images of the run, the nearest deciding ties; so too
    where that is one which people made, of which no classifier knows. Where its outlier score
    exceeds `threshold`, it is farther from them than all but `outlier_share` of the run's images
    were from each other: then its category is -1, possibly new. No category is ever added, renamed
    or renumbered.
    """

    def __init__(
        self,
        run: Run,
        *,
        outlier_share: float = OUTLIER_SHARE,
        device: str | torch.device | None = None,
        reporter: Reporter = SILENT,
    ) -> None:
        if not 0 <= outlier_share < 1:
            raise UsageError(f"outlier_share: found {outlier_share}, expected a number in [0, 1)")
        self.run = run
        self.reporter = reporter
        self.device = choose_device(device)
        self._encoder_device = encoder_device(device)
        categories = run.categories
        rows = run.assignments
        self.classes = [category.category for category in categories]
        self.ids = [category.category_id for category in categories]
        """The id of each category; a reviewed run has gaps where some were merged."""
        self.n_known = sum(not category.is_novel for category in categories)
        self._position_of = {number: at for at, number in enumerate(self.ids)}
        positions = np.array(
            [self._position_of.get(number, UNLABELED) for number in column(rows, "category_id")]
        )
        is_in = positions != UNLABELED  # (N,) rejected images vote for nothing
        self._points = unit_points(run.embeddings(), device=self.device)
        if not is_in.all():
            self._points = self._points[torch.from_numpy(is_in).to(self.device)]
        self._categories = positions[is_in]
        self._is_apart = np.array(column(rows, "is_apart"), dtype=bool)[is_in]
        self._mixed_probability = np.array([one.mixed_probability for one in categories])  # (K,)
        scores = np.array(column(rows, "outlier_score"))
        if np.isnan(scores).any():
            at = f"{rows[int(np.isnan(scores).argmax())].path!r}"
            raise damaged(
                table_files(run.path)[0], f"outlier_score: found none for {at}, expected a number"
            )
        self.threshold = float(np.quantile(scores, 1 - outlier_share))
        found_by_run = [category.category_id for category in Run(run.path).categories]
        self._made_by_people = [
            at for at, number in enumerate(self.ids) if number not in found_by_run
        ]
        self._calibration: Calibration | None = None
        self._seen: SeenProbability | None = None
        if run.has("calibration.json"):
            self._read_calibration(found_by_run)

    def _read_calibration(self, found_by_run: Sequence[int]) -> None:
        """Read how confidence was calibrated in this run.

        A category that a review has made counts as novel; one that it has made known is as good as
        others on average.
        """
        plain = self.run.json("calibration")
        calibration = Calibration.from_dict(plain)
        curves = (calibration.known, calibration.novel, calibration.labeled)
        n_scales = len(calibration.scale)
        if n_scales != len(found_by_run) or not all(len(curve.confidence) for curve in curves):
            raise damaged(
                self.run.path / "calibration.json", f"it is not of {len(found_by_run)} categories"
            )
        scale_of = dict(zip(found_by_run, np.nan_to_num(calibration.scale, nan=1.0), strict=True))
        scale = np.array([scale_of.get(number, 1.0) for number in self.ids])
        scale[self.n_known :] = np.nan
        self._calibration = replace(calibration, scale=scale)
        if plain.get("seen") is not None:
            self._seen = SeenProbability(plain["seen"]["slope"], plain["seen"]["intercept"])

    @cached_property
    def settings(self) -> DiscoverySettings:
        """The settings of the run; a run made from ready embeddings has no encoder."""
        if "method" not in self.run.config:
            raise UsageError(
                f"{self.run.path}: was made from ready embeddings, so nothing here can embed "
                "images; embed them as those were, and give the file (npy, npz, parquet or csv)"
            )
        return self.run.config_as(DiscoverySettings)

    @cached_property
    def shift(self) -> ShiftSettings:
        """The mean shift of the run, whose neighbors vote."""
        if "method" in self.run.config:
            return self.settings.shift
        return self.run.config_as(ClusterSettings).inference.shift

    @cached_property
    def networks(self) -> Networks:
        """The run's encoder, and its model where it was trained."""
        return load_networks(self.run, self.settings, self._encoder_device)

    def assign(self, source: str | os.PathLike[str], *, allow_missing: bool = False) -> Assigned:
        """Assign a folder of images, one image, a table of paths, shards, or embeddings.

        Many paths of a table that lead to nothing, and damaged shards, are an error unless
        `allow_missing`; then what is lost of a shard is listed too.
        """
        path = Path(source)
        suffix = path.suffix.lower()
        has_encoder = "method" in self.run.config
        if suffix in (".npy", ".npz") or (not has_encoder and suffix in EMBEDDING_SUFFIXES):
            given = read_embeddings(path)
            return self.assign_embeddings(given.names, given.x), ()
        # A run without an encoder or a model says so before images are looked for.
        _ = self.settings
        read_model(self.run)
        address = as_address(source)
        if suffix in IMAGE_SUFFIXES and (address is not None or path.is_file()):
            return self.assign_images(read_collection([address or path]))
        labels: Literal[False] | None = False
        if suffix in TABLE_SUFFIXES and not is_shards(source):
            labels = None  # the table says which images there are
        collection = read_collection(source, labels, allow_missing=allow_missing)
        for note in collection.notes:
            self.reporter.say(f"{NOTE}{note}")
        rows, skipped = self.assign_images(collection)
        return rows, (*(Skipped(*one) for one in collection.left_out), *skipped)

    def assign_images(self, collection: Collection) -> Assigned:
        """Assign images, whatever labels they carry."""
        _ = self.networks  # first, because a run without them cannot take images
        with self.reporter.progress("decoding images", "images") as progress:
            pixels = load_pixels(collection, self.settings.pixel_size, progress=progress)
        rows: list[Assignment] = []
        with self.reporter.progress(EMBEDDING, "images") as progress:
            for start in range(0, len(pixels), ROWS_AT_ONCE):
                stop = min(start + ROWS_AT_ONCE, len(pixels))
                x = self._embed(pixels, start, stop, progress)
                rows += self.assign_embeddings(pixels.names[start:stop], x)
        return rows, pixels.skipped

    def _embed(self, pixels: Pixels, begin: int, end: int, progress: Progress) -> Floats:
        """The embeddings of some images, in the host's memory."""
        parts: list[Tensor] = []
        n_columns = self._points.shape[1]
        for start in range(begin, end, IMAGES_AT_ONCE):
            stop = min(start + IMAGES_AT_ONCE, end)
            part = self.networks.embed(pixels[start:stop]).cpu()
            if part.shape[1] != n_columns:
                raise damaged(
                    self.run.path / "embeddings.npy",
                    f"found {n_columns} columns, but the run's networks give {part.shape[1]}",
                )
            parts.append(part)
            progress(stop, len(pixels))
        return torch.cat(parts).numpy()

    def assign_embeddings(self, names: Sequence[str], x: ArrayLike) -> list[Assignment]:
        """Assign embeddings (M, D), made as the run's were; a row per name.

        They may be a memory map: a block of rows is read at a time.
        """
        given = as_stored_embeddings(x)
        expected = (len(names), self._points.shape[1])
        if given.shape != expected:
            raise DataError(
                f"embeddings: found shape {given.shape}, expected {expected}, a row per name with "
                "as many columns as the run's; embed the images as the run's were embedded"
            )
        is_zero = each_row(given, lambda rows: ~rows.any(axis=1))
        if is_zero.any():
            raise DataError(
                f"embeddings: only zeros in {name_rows(is_zero)}, so no direction; remove them"
            )
        rows: list[Assignment] = []
        for start in range(0, len(names), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            rows += self._assign(names[part], given[part])
        return rows

    def _assign(self, names: Sequence[str], x: Floats) -> list[Assignment]:
        new = unit_points(x, device=self.device, min_rows=1).to(self._points.dtype)
        predicted = self._predict(new)
        with together():  # several processes share the search for neighbors, and nothing else
            voted, members, lists = assign_newcomers(
                new,
                self._points,
                self._categories,
                self.n_known,
                self.shift.n_neighbors,
                predicted,
                self._made_by_people,
            )
        confidence = members.confidence
        if self._calibration is not None:
            is_labeled = np.zeros(len(voted), dtype=bool)
            confidence = self._calibration.confidence(confidence, voted, is_labeled)
        if self._seen is not None:
            confidence = confidence * self._seen.at(members.outlier_score)
        near_apart = self._is_apart[lists.indices.cpu().numpy()].mean(axis=1)  # (M,)
        confidence = confidence * (1 - self._mixed_probability[voted] * near_apart)
        # The threshold comes from the run's table, so it is known to the decimals written there.
        is_new = np.round(members.outlier_score, DECIMALS) > self.threshold
        rows = []
        for i, name in enumerate(names):
            category = int(voted[i])
            row = Assignment(
                path=name,
                category_id=self.ids[category],
                category=self.classes[category],
                is_novel=category >= self.n_known,
                confidence=float(confidence[i]),
                outlier_score=float(members.outlier_score[i]),
                nearest_known=self._name(members.nearest_known[i]),
                nearest_known_similarity=float(members.nearest_known_similarity[i]),
                second_category=self._name(members.second[i]),
            )
            if is_new[i]:
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

    def _predict(self, new: Tensor) -> Ints | None:
        """What the run's classifier says of unit embeddings (M, D); None where it has none."""
        model = read_model(self.run)
        if model is None or not model.get("classifier"):
            return None
        predicted = self.networks.predict(new)
        assert predicted is not None
        return np.array([self._position_of.get(number, NONE) for number in predicted.tolist()])

    def _name(self, category: int) -> str:
        if category == NONE:
            return ""
        return self.classes[category]


class Watch:
    """A folder, here or in a bucket, and which of its images were seen and assigned."""

    def __init__(self, assigner: Assigner, folder: str | os.PathLike[str]) -> None:
        self.assigner = assigner
        self.address = as_address(folder)
        self.root = None
        if self.address is None:
            self.root = check_folder(folder)
        self._seen: dict[str, str | None] = {}
        self._done: dict[str, str | None] = {}

    def poll(self) -> Assigned:
        """Assign the images that came or changed.

        A file counts as complete when two looks in a row find it the same, so that none is read
        while it is written.
        """
        stored = None
        if self.address is None:
            assert self.root is not None
            names = list_folder(self.root).names
            states = [file_state(f"{self.root}/{name}") for name in names]
        else:
            listing = list_remote_folder(self.address)
            assert listing.stored is not None
            names = listing.names
            states = list(listing.stored.states)
            stored = listing.stored
        ready = [
            i
            for i, (name, state) in enumerate(zip(names, states, strict=True))
            if state is not None and self._seen.get(name) == state != self._done.get(name)
        ]
        self._seen = dict(zip(names, states, strict=True))
        if not ready:
            return [], ()
        chosen = tuple(names[i] for i in ready)
        self._done |= {name: self._seen[name] for name in chosen}
        if stored is not None:
            stored = stored.take(np.array(ready))
        unlabeled = np.full(len(ready), UNLABELED)
        collection = Collection(chosen, unlabeled, (), root=self.root, stored=stored)
        try:
            return self.assigner.assign_images(collection)
        except DataError as error:  # none of them can be decoded; the next ones may
            return [], tuple(Skipped(name, str(error)) for name in chosen)
