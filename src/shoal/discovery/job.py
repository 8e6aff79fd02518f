"""A job: a collection, its settings, the run folder, the device and the reporter.

`discover`, `refine` and `compare` build one from an `ImageSource`; `run_job.py` runs it.
"""

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.clustering.curve import renumber_classes
from shoal.clustering.n_clusters import check_n_clusters
from shoal.data.collection import Collection, check_for_discovery
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions
from shoal.data.readers.folders import SHARD_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage import absolute
from shoal.discovery.discovery_settings import ComparisonSettings, DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import Encoder
from shoal.errors import DataError
from shoal.files import AnyPath
from shoal.methods.method import Representation, TrunkOutputs
from shoal.runs import Run
from shoal.settings import Plain


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The arguments of `discover` and `compare` that name the images and labels."""

    images: Any = None
    labels: Any = None
    labeled: AnyPath | None = None
    unlabeled: AnyPath | None = None
    path_column: str | None = None
    label_column: str | None = None
    allow_missing: bool = False
    boxes: Any = None
    min_confidence: float | None = None
    margin: float = 0.0
    whole_images: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether neither images nor labels nor boxes are named."""
        parts = (self.images, self.labels, self.labeled, self.unlabeled, self.boxes)
        has_box_options = self.min_confidence is not None or self.margin or self.whole_images
        return all(part is None for part in parts) and not has_box_options

    def read(self) -> Collection:
        boxes = BoxOptions(
            source=self.boxes,
            min_confidence=self.min_confidence,
            margin=self.margin,
            whole_images=self.whole_images,
        )
        return read_collection(
            self.images,
            self.labels,
            labeled=self.labeled,
            unlabeled=self.unlabeled,
            path_column=self.path_column,
            label_column=self.label_column,
            allow_missing=self.allow_missing,
            boxes=boxes,
        )

    @property
    def default_folder(self) -> Path:
        """The default run folder: runs/<name of the folder or file>; runs/images for images in
        memory."""
        images = self.unlabeled if self.images is None else self.images
        if not isinstance(images, str | os.PathLike):
            return Path("runs") / "images"
        place = absolute(images)
        name = place.name
        if place.suffix.lower() in (*SHARD_SUFFIXES, *TABLE_SUFFIXES):
            name = place.stem
        name = re.sub(r"[-_.]?(\{[^}]*\}|\*)", "", name)  # the pattern of several shards
        return Path("runs") / (name or "images")


@dataclass(frozen=True, kw_only=True)
class EmbeddedImages:
    """The images that could be decoded, in the order of `collection`."""

    collection: Collection
    frozen: Representation
    # Tokens and views that the training runs of a job share
    trunk_outputs: TrunkOutputs
    ready_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """The inputs and outputs that `discover` and `compare` have in common."""

    collection: Collection
    # In a comparison: those of the frozen encoder, which include what all methods share
    settings: DiscoverySettings
    run: Run
    device: torch.device
    resume: bool = False
    force: bool = False
    # The command line, for provenance.json
    command: str = ""
    reporter: Reporter = field(default_factory=Reporter)
    # Whether training should stop now, see `stop_request`
    stop: Callable[[], bool] = lambda: False
    # When the command or call began, from which `max_minutes` count
    began_at: float = field(default_factory=time.monotonic)

    @property
    def config(self) -> DiscoverySettings | ComparisonSettings:
        return self.settings

    @property
    def methods(self) -> Sequence[DiscoverySettings]:
        return (self.settings,)

    def check(self, collection: Collection) -> None:
        check_collection(collection, self.settings)

    def load_encoder(self) -> Encoder:
        """Load the encoder, split for the first method; raise if another method cannot split
        it."""
        chosen = self.settings.method_settings
        splits = dict.fromkeys(each.n_tail_blocks for each in self.methods)
        encoders = [
            load_encoder(chosen.encoder, n_tail_blocks=split, input_size=chosen.input_size)
            for split in splits
        ]
        return encoders[0]

    @abstractmethod
    def plan(self) -> Plain:
        """Return what --dry-run reports in addition to the items common to all jobs."""

    @abstractmethod
    def compute(self, images: EmbeddedImages) -> Plain:
        """Compute and write the results; return items for provenance.json."""

    def write_final_outputs(self) -> None:  # noqa: B027  (a comparison has none)
        """Write what needs all results, before the run is marked as finished."""


def check_collection(collection: Collection, settings: DiscoverySettings) -> None:
    """Raise for a collection that would fail after decoding and embedding."""
    if settings.n_clusters is None:
        check_for_discovery(collection)
        inference = settings.method_settings.inference
        # Raises if K cannot be estimated.
        renumber_classes(collection.labels, inference.min_clusters, inference.max_clusters)
    else:
        check_n_clusters(settings.n_clusters, collection.labels, len(collection))
    n_neighbors = settings.shift.n_neighbors
    if len(collection) <= n_neighbors:
        raise DataError(
            f"{collection.count()}: a mean over {n_neighbors} neighbors needs more than "
            f"{n_neighbors} images, found {len(collection)}; add images, or lower "
            "inference.shift.n_neighbors"
        )
