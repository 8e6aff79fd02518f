"""New images onto the categories of a finished run: existing ids only, -1 for what is possibly new.

A folder may be watched: images that arrive in it are assigned, each once.

N images of the run, M new ones, D columns, k neighbors.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, as_stored_embeddings, each_row, name_rows
from shoal.clustering.calibration import Calibration
from shoal.clustering.categories import NONE, Membership, assign_newcomers
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
from shoal.data.storage.stored import StoredFiles
from shoal.device import choose_device, encoder_device
from shoal.discovery.cluster_embeddings import ClusterSettings
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.networks import Networks, load_networks, read_model
from shoal.discovery.read_and_embed import EMBEDDING
from shoal.discovery.reporter import NOTE, SILENT, Reporter
from shoal.distributed import together
from shoal.errors import DataError, UsageError
from shoal.progress import Progress
from shoal.runs import DECIMALS, Assignment, Category, RunView, column, damaged, table_files

OUTLIER_SHARE = 0.01
"""Share of the run's own images that lie beyond the threshold."""

IMAGES_AT_ONCE = 256
"""Images that are embedded at a time: their tokens are held."""

ROWS_AT_ONCE = 64 * IMAGES_AT_ONCE
"""Images that are put into categories at a time: their embeddings are held. Any number gives the same rows."""


class Assigner:
    """A finished run, ready to take new images; weights and embeddings are loaded once and serve every call.

    A new image joins the category that the run's classifier predicts or, in a run without one, the category most common
    among its k nearest images of the run, the nearest deciding ties; so too where that is one which people made, of
    which no classifier knows. Where its outlier score exceeds `threshold`, it is farther from them than all but
    `outlier_share` of the run's images were from each other: then its category is -1, possibly new. No category is ever
    added, renamed or renumbered.
    """

    def __init__(
        self,
        run: RunView,
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
        found_by_run = {category.category_id for category in RunView(run.path).categories}
        self._made_by_people = [
            at for at, number in enumerate(self.ids) if number not in found_by_run
        ]
        position_of = self._position_of = {number: at for at, number in enumerate(self.ids)}
        positions = np.array(
            [position_of.get(number, UNLABELED) for number in column(rows, "category_id")]
        )  # (N,)
        is_in = (
            positions != UNLABELED
        )  # those that were rejected or are between two vote for nothing
        points = unit_points(run.embeddings(), device=self.device)  # (N, D)
        self._points = (
            points if is_in.all() else points[torch.from_numpy(is_in).to(self.device)]
        )  # (n, D)
        self._categories = positions[is_in]  # (n,)
        self._calibration = _read_calibration(run, categories)
        self._seen = _read_seen(run)
        self._is_apart = np.array(column(rows, "is_apart"), dtype=bool)[is_in]  # (n,)
        self._mixed_probability = np.array([one.mixed_probability for one in categories])  # (K,)
        scores = np.array(column(rows, "outlier_score"))  # (N,)
        if np.isnan(scores).any():
            at = f"{rows[int(np.isnan(scores).argmax())].path!r}"
            raise damaged(
                table_files(run.path)[0], f"outlier_score: found none for {at}, expected a number"
            )
        self.threshold = float(np.quantile(scores, 1 - outlier_share))

    @cached_property
    def settings(self) -> DiscoverySettings:
        """What the run was told; a run made from ready embeddings has no encoder."""
        if "method" not in self.run.config:
            raise UsageError(
                f"{self.run.path}: was made from ready embeddings, so nothing here can embed images; embed them as "
                "those were, and give the file (npy, npz, parquet or csv)"
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

    def assign(
        self, source: str | os.PathLike[str], *, allow_missing: bool = False
    ) -> tuple[list[Assignment], tuple[Skipped, ...]]:
        """Put what lies at `source` into categories: a folder of images, one image, a table of paths, or embeddings.

        A row per readable image, and what is not. Many paths of a table that lead to nothing, and damaged shards, are
        an error unless `allow_missing`; then what is lost of a shard is listed too.
        """
        path = Path(source)
        suffix = path.suffix.lower()
        has_encoder = "method" in self.run.config
        if suffix in (".npy", ".npz") or (not has_encoder and suffix in EMBEDDING_SUFFIXES):
            given = read_embeddings(path)
            return self.assign_embeddings(given.names, given.x), ()
        _ = (
            self.settings,
            read_model(self.run),
        )  # a run without encoder or model says so before images are looked for
        address = as_address(source)
        if suffix in IMAGE_SUFFIXES and (address is not None or path.is_file()):
            return self.assign_images(read_collection([address or path]))
        is_table = suffix in TABLE_SUFFIXES and not is_shards(source)
        collection = read_collection(
            source, None if is_table else False, allow_missing=allow_missing
        )
        for note in collection.notes:
            self.reporter.say(f"{NOTE}{note}")
        rows, skipped = self.assign_images(collection)
        return rows, (*(Skipped(*one) for one in collection.left_out), *skipped)

    def assign_images(self, collection: Collection) -> tuple[list[Assignment], tuple[Skipped, ...]]:
        """Put images into categories, whatever labels they carry; a row per readable image, and those that are not."""
        networks = self.networks  # first, because a run without them cannot take images
        with self.reporter.progress("decoding images", "images") as progress:
            pixels = load_pixels(collection, self.settings.pixel_size, progress=progress)
        n_images = len(pixels)
        rows: list[Assignment] = []
        with self.reporter.progress(EMBEDDING, "images") as progress:
            for start in range(0, n_images, ROWS_AT_ONCE):
                part = slice(start, min(start + ROWS_AT_ONCE, n_images))
                new = self._embed(pixels, part, networks, progress)
                rows += self.assign_embeddings(pixels.names[part], new)
        return rows, pixels.skipped

    def _embed(self, pixels: Pixels, part: slice, networks: Networks, progress: Progress) -> Floats:
        """The embeddings of some images, in the host's memory."""
        parts: list[Tensor] = []
        for start in range(part.start, part.stop, IMAGES_AT_ONCE):
            stop = min(start + IMAGES_AT_ONCE, part.stop)
            parts.append(networks.embed(pixels[start:stop]).cpu())
            progress(stop, len(pixels))
            if parts[0].shape[1] != self._points.shape[1]:
                what = f"found {self._points.shape[1]} columns, but the run's networks give {parts[0].shape[1]}"
                raise damaged(self.run.path / "embeddings.npy", what)
        return torch.cat(parts).numpy()

    def assign_embeddings(self, names: Sequence[str], x: ArrayLike) -> list[Assignment]:
        """Put embeddings (M, D), made as the run's were, into categories; a row per name.

        They may be a memory map: some of them are looked at together.
        """
        given = as_stored_embeddings(x)
        expected = (len(names), self._points.shape[1])
        if given.shape != expected:
            raise DataError(
                f"embeddings: found shape {given.shape}, expected {expected}, a row per name with as many columns as "
                "the run's; embed the images as the run's were embedded"
            )
        is_zero = each_row(given, lambda rows: ~rows.any(axis=1))
        if is_zero.any():
            raise DataError(
                f"embeddings: only zeros in {name_rows(is_zero)}, so no direction; remove them"
            )
        parts = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(names), ROWS_AT_ONCE)]
        return [row for part in parts for row in self._assign(names[part], given[part])]

    def _assign(self, names: Sequence[str], x: Floats) -> list[Assignment]:
        new = unit_points(x, device=self.device, min_rows=1).to(self._points.dtype)
        n_neighbors = self.shift.n_neighbors
        predicted = self._predict(new)
        with together():  # where several processes assign, each does all of it but shares the search for neighbors
            voted, members, lists = assign_newcomers(
                new,
                self._points,
                self._categories,
                self.n_known,
                n_neighbors,
                predicted,
                self._made_by_people,
            )
        confidence = members.confidence
        if self._calibration is not None:
            confidence = self._calibration.confidence(
                confidence, voted, np.zeros(len(voted), dtype=bool)
            )
        if self._seen is not None:
            confidence = confidence * self._seen.at(members.outlier_score)
        near_apart = self._is_apart[lists.indices.cpu().numpy()].mean(axis=1)  # (M,)
        confidence = confidence * (1 - self._mixed_probability[voted] * near_apart)
        members = replace(members, confidence=confidence)
        # The threshold comes from the run's table, so it is known to the decimals that are written there.
        is_new = np.round(members.outlier_score, DECIMALS) > self.threshold
        chosen = np.where(is_new, UNLABELED, voted)
        return [
            self._row(name, i, int(chosen[i]), int(voted[i]), members)
            for i, name in enumerate(names)
        ]

    def _predict(self, new: Tensor) -> Ints | None:
        """What the run's classifier says of unit embeddings (M, D); None where it has none."""
        model = read_model(self.run)
        predicted = (
            self.networks.predict(new) if model is not None and model.get("classifier") else None
        )
        return (
            None
            if predicted is None
            else np.array(
                [self._position_of.get(category, NONE) for category in predicted.tolist()]
            )
        )

    def _row(self, name: str, i: int, category: int, voted: int, members: Membership) -> Assignment:
        is_new = category == UNLABELED
        return Assignment(
            path=name,
            category_id=UNLABELED if is_new else self.ids[category],
            category="" if is_new else self.classes[category],
            is_novel=is_new or category >= self.n_known,
            confidence=0.0 if is_new else float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=self._name(int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=self._name(voted if is_new else int(members.second[i])),
        )

    def _name(self, category: int) -> str:
        return "" if category == NONE else self.classes[category]


def _read_calibration(run: RunView, categories: Sequence[Category]) -> Calibration | None:
    """What confidence rests on in this run; None in one that was made before that was written.

    A category that a review has made counts as novel; one that it has made known is as good as others on average.
    """
    ids = [category.category_id for category in RunView(run.path).categories]
    if not run.has("calibration.json"):
        return None
    calibration = Calibration.from_dict(run.json("calibration"))
    curves = (calibration.known, calibration.novel, calibration.labeled)
    if len(calibration.scale) != len(ids) or not all(len(curve.confidence) for curve in curves):
        raise damaged(run.path / "calibration.json", f"it is not of {len(ids)} categories")
    own = dict(zip(ids, calibration.scale.tolist(), strict=True))
    usual = [own.get(category.category_id, 1.0) for category in categories]
    scale = [
        np.nan if c.is_novel else 1.0 if s != s else s
        for c, s in zip(categories, usual, strict=True)
    ]
    return replace(calibration, scale=np.array(scale, dtype=float))


def _read_seen(run: RunView) -> SeenProbability | None:
    """How likely an image is of a category that the run has seen; None where the run cannot say."""
    plain = run.json("calibration").get("seen") if run.has("calibration.json") else None
    return None if plain is None else SeenProbability(plain["slope"], plain["intercept"])


class Watch:
    """A folder, here or in a bucket, and what was seen in it; the run's model is loaded once and serves every look."""

    def __init__(self, assigner: Assigner, folder: str | os.PathLike[str]) -> None:
        self.assigner = assigner
        self.address = as_address(folder)
        self.root = check_folder(folder) if self.address is None else None
        self._seen: dict[str, str] = {}
        self._done: dict[str, str] = {}

    def poll(self) -> tuple[list[Assignment], tuple[Skipped, ...]]:
        """Assign the images that came or changed; a row per readable one, and those that are not.

        A file counts as complete when two looks in a row find it the same, so that none is read while it is written.
        """
        states, stored = self._look()
        ready = [
            name
            for name, state in states.items()
            if self._seen.get(name) == state != self._done.get(name)
        ]
        self._seen = states
        if not ready:
            return [], ()
        self._done |= {name: states[name] for name in ready}
        wanted = set(ready)
        chosen = np.array([i for i, name in enumerate(states) if name in wanted])
        where: dict[str, Any] = {
            "root": self.root,
            "stored": None if stored is None else stored.take(chosen),
        }
        collection = Collection(tuple(sorted(ready)), np.full(len(ready), UNLABELED), (), **where)
        try:
            return self.assigner.assign_images(collection)
        except DataError as error:  # none of them can be decoded; the next ones may
            return [], tuple(Skipped(name, str(error)) for name in collection.names)

    def _look(self) -> tuple[dict[str, str], StoredFiles | None]:
        """The state of every image by name, sorted, and where they lie if that is no local folder."""
        if self.address is not None:
            listing = list_remote_folder(self.address)
            assert listing.stored is not None
            return dict(zip(listing.names, listing.stored.states, strict=True)), listing.stored
        names = list_folder(self.root).names if self.root is not None else ()
        there = {name: file_state(f"{self.root}/{name}") for name in names}
        return {
            name: state for name, state in there.items() if state is not None
        }, None  # some are gone since
