"""Open images on a network or in shards.

Their location is a string, which can be sent to a decoding worker: the address of a file;
`range:START:SIZE:FILE`, bytes of a tar shard; `row:NUMBER:COLUMN:FILE`, a row of a parquet shard.
FILE is an address or a local path. Workers import this module, so it does not import numpy.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, unquote

from shoal.data.storage.addresses import READABLE, as_address
from shoal.data.storage.remote import open_remote, read_bytes
from shoal.errors import missing_package

if TYPE_CHECKING:
    from pyarrow import Scalar
    from pyarrow.parquet import ParquetFile

STORED = re.compile(rf"(range|row|{'|'.join(READABLE)}):")

BATCH_ROWS = 8
"""Rows of a parquet shard per batch in memory."""

BUFFER_BYTES = 1 << 20
"""Bytes of a parquet shard per read."""


def row_of(file: str, row: int, column: str) -> str:
    """Return the location of the image in a row of a parquet shard."""
    return f"row:{row}:{quote(column, safe='')}:{file}"


def is_stored(path: str) -> bool:
    """Return whether this is such a location, not a local path."""
    return STORED.match(path) is not None


def read_stored(path: str) -> bytes:
    """Return the bytes of the image at a location."""
    kind, _, rest = path.partition(":")
    if kind == "range":
        start, n_bytes, file = rest.split(":", 2)
        return _read_range(file, int(start), int(n_bytes))
    if kind == "row":
        row, column, file = rest.split(":", 2)
        return _rows(file, unquote(column)).read(int(row))
    return read_bytes(path)


def open_file(file: str) -> BinaryIO:
    """Open a local or remote file for random access."""
    address = as_address(file)
    if address is not None:
        return open_remote(address)
    return Path(file).open("rb")


def open_parquet(file: str) -> "ParquetFile":
    """Open a parquet file whose columns are read in small parts."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", f"reading {file}") from error
    source: str | BinaryIO = file
    if as_address(file) is not None:
        source = open_file(file)
    return pyarrow.parquet.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)


def _read_range(file: str, start: int, n_bytes: int) -> bytes:
    if n_bytes and as_address(file) is not None:
        return read_bytes(file, start, n_bytes)
    with open_file(file) as shard:
        shard.seek(start)
        content = shard.read(n_bytes)
    if len(content) < n_bytes:
        raise EOFError("the shard is truncated")
    return content


class _Rows:
    """The images of a parquet shard, read forward; a backward step rereads the row group."""

    def __init__(self, file: str, column: str) -> None:
        self.column = column
        self.parquet = open_parquet(file)
        about = self.parquet.metadata
        sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        self.firsts = list(accumulate(sizes, initial=0))
        self.group = -1
        self.next_row = 0
        self.cells: Iterator[Scalar] = iter(())
        self.lock = threading.Lock()

    def read(self, row: int) -> bytes:
        """Return the bytes of one row; threads take turns."""
        with self.lock:
            group = bisect_right(self.firsts, row) - 1
            if group != self.group or row < self.next_row:
                batches = self.parquet.iter_batches(
                    BATCH_ROWS, row_groups=[group], columns=[self.column], use_threads=False
                )
                self.cells = chain.from_iterable(batch.column(0) for batch in batches)
                self.next_row = self.firsts[group]
            self.group = -1  # if reading fails, the next call rereads the group
            cell = next(islice(self.cells, row - self.next_row, None)).as_py()
            self.group = group
            self.next_row = row + 1
        if isinstance(cell, dict):
            cell = cell["bytes"]
        if cell is None:
            raise ValueError("the row holds no image")
        return bytes(cell)


@lru_cache(maxsize=1)
def _rows(file: str, column: str) -> _Rows:
    return _Rows(file, column)
