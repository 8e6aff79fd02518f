"""The images of a collection that are no files of a local folder: where each lies, and in which
state it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import Ints
from shoal.data.storage.opening import row_of
from shoal.data.storage.remote import FileState


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredFiles:
    """N images, in the order of the collection's names: files below an address, or members of tar
    or parquet shards.

    Whole files have no shards; their address is `where` and their name.
    """

    where: str
    """The address, or the shards as they were given."""
    states: tuple[str, ...]
    """(N,) another one when the image may have changed; a shard's members change with it."""
    n_bytes: Ints
    """(N,) the bytes of each image, -1 where nobody says."""
    shards: tuple[str, ...]
    """The files that hold the images."""
    shard: Ints
    """(N,) the shard of each image."""
    starts: Ints
    """(N,) its first byte in a tar shard, its row in a parquet shard."""
    column: str | None = None
    """The column of images, in parquet shards."""

    @classmethod
    def of_states(cls, where: str, states: Sequence[FileState]) -> "StoredFiles":
        """Whole files below an address, by what the store says of each."""
        return cls(
            where=where,
            states=tuple(state.mark for state in states),
            n_bytes=np.array([state.n_bytes for state in states], dtype=np.int64),
            shards=(),
            shard=np.zeros(len(states), dtype=np.int64),
            starts=np.zeros(len(states), dtype=np.int64),
        )

    def address(self, i: int, name: str) -> str:
        """The address of image `i`, as `read_stored` takes it."""
        if not self.shards:
            return f"{self.where.removesuffix('/')}/{name}"
        file = self.shards[self.shard[i]]
        if self.column is not None:
            return row_of(file, int(self.starts[i]), self.column)
        return f"range:{self.starts[i]}:{self.n_bytes[i]}:{file}"

    @property
    def n_together(self) -> int:
        """Images that one worker should read at a time: rows of a parquet shard lie in groups,
        of 100 as a rule."""
        if self.column is None:
            return 16
        return 128

    def take(self, index: Ints) -> "StoredFiles":
        """The files of some of the images."""
        return replace(
            self,
            states=tuple(self.states[i] for i in index),
            n_bytes=self.n_bytes[index],
            shard=self.shard[index],
            starts=self.starts[index],
        )

    def reading_order(self, positions: Sequence[int]) -> list[int]:
        """The same images, shard by shard and forward in each."""
        chosen = np.asarray(positions, dtype=np.int64)
        order: list[int] = chosen[np.lexsort((self.starts[chosen], self.shard[chosen]))].tolist()
        return order
