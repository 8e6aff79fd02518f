"""Locations and states of images on a network or in shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import Ints


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredFiles:
    """N images in the order of the collection's names: files below an address, or parts of
    shards."""

    where: str
    """The address, or the pattern of the shards."""
    locations: tuple[str, ...]
    """(N,) location of each image, as `read_stored` takes it."""
    states: tuple[str, ...]
    """(N,) changes with the image, or with its shard."""
    order: Ints
    """(N,) rank of each image by its place in the shards: the order in which to read them."""

    @classmethod
    def of_states(cls, where: str, states: Mapping[str, str]) -> "StoredFiles":
        """Return files below an address by their names and states."""
        return cls(
            where=where,
            locations=tuple(f"{where.removesuffix('/')}/{name}" for name in states),
            states=tuple(states.values()),
            order=np.arange(len(states)),
        )

    @property
    def n_together(self) -> int:
        """Images per task of a worker: rows of a parquet shard are stored in groups of about
        100."""
        if self.locations[0].startswith("row:"):
            return 128
        return 16

    def take(self, index: Ints) -> "StoredFiles":
        """Return the images at some positions."""
        return replace(
            self,
            locations=tuple(self.locations[i] for i in index),
            states=tuple(self.states[i] for i in index),
            order=self.order[index],
        )

    def reading_order(self, positions: Sequence[int]) -> list[int]:
        """Return positions sorted by shard and place in the shard."""
        return sorted(positions, key=self.order.__getitem__)
