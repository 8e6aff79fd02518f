"""The images of a collection that are no files of a local folder: where each lies, and in which
state it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import Ints
from shoal.data.storage.opening import range_of, row_of
from shoal.data.storage.remote import FileState

UNKNOWN = -1
"""The number of bytes of an image where nobody says it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredFiles:
    """N images, in the order of the collection's names: files below an address, or members of tar
    or parquet shards.

    Whole files have no shards; their address is `where` and their name.
    """

    where: str
    """The address, or the shards as they were given: what a run says of where its images came
    from."""
    states: tuple[str, ...]
    """(N,) another one when the image may have changed; a shard's members change with it."""
    n_bytes: Ints
    """(N,) the bytes of each image, `UNKNOWN` where nobody says."""
    shards: tuple[str, ...] = ()
    """The files that hold the images."""
    shard: Ints | None = None
    """(N,) the shard of each image."""
    starts: Ints | None = None
    """(N,) its first byte in a tar shard, its row in a parquet shard."""
    column: str | None = None
    """The column of images, in parquet shards."""

    @classmethod
    def of_states(cls, where: str, states: Sequence[FileState]) -> "StoredFiles":
        """Whole files below an address, by what the store says of each."""
        sizes = [UNKNOWN if state.n_bytes is None else state.n_bytes for state in states]
        marks = tuple(state.mark for state in states)
        return cls(where=where, states=marks, n_bytes=np.array(sizes, dtype=np.int64))

    def address(self, i: int, name: str) -> str:
        """The address of image `i`, as `read_stored` takes it."""
        if self.shard is None or self.starts is None:
            return f"{self.where.removesuffix('/')}/{name}"
        file = self.shards[self.shard[i]]
        start = int(self.starts[i])
        if self.column is not None:
            return row_of(file, start, self.column)
        return range_of(file, start, int(self.n_bytes[i]))

    @property
    def n_together(self) -> int:
        """Images that one worker should read at a time: rows of a parquet shard lie in groups,
        of 100 as a rule."""
        return 128 if self.column is not None else 16

    def take(self, index: Ints) -> "StoredFiles":
        """The files of some of the images."""
        states = tuple(self.states[i] for i in index)
        chosen = replace(self, states=states, n_bytes=self.n_bytes[index])
        if self.shard is None or self.starts is None:
            return chosen
        return replace(chosen, shard=self.shard[index], starts=self.starts[index])

    def reading_order(self, positions: Sequence[int]) -> list[int]:
        """The same images, shard by shard and forward in each."""
        if self.shard is None or self.starts is None:
            return list(positions)
        chosen = np.asarray(positions, dtype=np.int64)
        order: list[int] = chosen[np.lexsort((self.starts[chosen], self.shard[chosen]))].tolist()
        return order
