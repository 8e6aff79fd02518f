"""A job: one collection, how it is treated, where the result goes, and who hears of it.

`discover`, `refine` and `compare` build one and hand it down; `run_job.py` does it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoal.clustering.curve import known_classes
from shoal.clustering.n_clusters import check_n_clusters
from shoal.data.collection import Collection, check_for_discovery
from shoal.data.pixels import Pixels
from shoal.device import computing_device
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import Encoder
from shoal.errors import DataError
from shoal.methods.clusters import Representation
from shoal.methods.trunk import Trunk
from shoal.runs import Run

if TYPE_CHECKING:
    from shoal.discovery.comparison.comparison_settings import ComparisonSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbeddedImages:
    """The images that could be decoded; rows of all parts are those of `collection`."""

    collection: Collection
    pixels: Pixels
    frozen: Representation
    """By the frozen encoder."""
    trunk: Trunk
    """What its trunk has computed, for whoever trains next."""


def _never() -> bool:
    return False


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """What `discover` and `compare` have in common."""

    collection: Collection
    settings: DiscoverySettings
    """Of a comparison: those of the frozen encoder, which decide whatever is the same for all
    methods."""
    run: Run
    encoder_device: torch.device
    """Where frozen encoders run."""
    resume: bool = False
    force: bool = False
    tensorboard: bool = False
    command: str = ""
    """The command line, for the run's record."""
    reporter: Reporter = field(default_factory=Reporter)
    stop: Callable[[], bool] = _never
    """Whether training is to stop, as `stop_request` says."""

    @property
    def device(self) -> torch.device:
        """Where is trained and clustered."""
        return computing_device(self.encoder_device)

    @property
    def config(self) -> "DiscoverySettings | ComparisonSettings":
        """What config.yaml holds."""
        return self.settings

    @property
    def methods(self) -> Sequence[DiscoverySettings]:
        """The settings of every method that answers."""
        return (self.settings,)

    def check(self, collection: Collection) -> None:
        """Refuse a collection that could only fail later, after decoding and embedding."""
        check_collection(collection, self.settings)

    def load_encoder(self) -> Encoder:
        """The encoder, split for the first method; what another method cannot split is refused
        too."""
        chosen = self.settings.of_method
        splits = dict.fromkeys(each.n_tail_blocks for each in self.methods)
        encoders = [
            load_encoder(chosen.encoder, n_tail_blocks=split, input_size=chosen.input_size)
            for split in splits
        ]
        return encoders[0]

    @abstractmethod
    def plan(self, readable: Collection) -> dict[str, Any]:
        """What --dry-run reports beside what it reports of every job."""

    @abstractmethod
    def answer(self, images: EmbeddedImages) -> dict[str, Any]:
        """Find and write the result; return what provenance.json records of the finished run."""

    @property
    def is_concluded(self) -> bool:
        """Whether a finished run has what `conclude` writes."""
        return True

    @abstractmethod
    def conclude(self) -> None:
        """Write what comes after a run is finished."""


def check_collection(collection: Collection, settings: DiscoverySettings) -> None:
    """Refuse now what could only fail later, after decoding and embedding."""
    if settings.n_clusters is None:
        check_for_discovery(collection)
        inference = settings.of_method.inference
        known_classes(collection.labels, inference.min_clusters, inference.max_clusters)
    else:
        check_n_clusters(settings.n_clusters, collection.labels, len(collection))
    n_neighbors = settings.shift.n_neighbors
    if len(collection) <= n_neighbors:
        raise DataError(
            f"{collection.count()}: a mean over {n_neighbors} neighbors needs more than "
            f"{n_neighbors} images, found {len(collection)}; add images, or lower "
            "inference.shift.n_neighbors"
        )
