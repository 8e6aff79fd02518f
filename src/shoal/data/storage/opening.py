"""How an image is opened that is no file of its own on this machine.

A string says where it lies, so that a decoding worker can be told: the address of a file;
`range:START:SIZE:FILE`, bytes of a tar shard; `row:NUMBER:COLUMN:FILE`, a row of a parquet shard.
FILE is an address, or a path on this machine. Workers start by importing this: no numpy.
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

ROWS_AT_ONCE = 8
"""Rows of a parquet shard that are in memory at once."""

BUFFER_BYTES = 1 << 20
"""Bytes of a parquet shard that are read at once."""


def row_of(file: str, row: int, column: str) -> str:
    """The image in a row of a parquet shard."""
    return f"row:{row}:{quote(column, safe='')}:{file}"


def is_stored(path: str) -> bool:
    """Whether this is one of the strings above, and no path on this machine."""
    return STORED.match(path) is not None


def read_stored(path: str) -> bytes:
    """The bytes of an image."""
    kind, _, rest = path.partition(":")
    if kind == "range":
        start, n_bytes, file = rest.split(":", 2)
        return _read_range(file, int(start), int(n_bytes))
    if kind == "row":
        row, column, file = rest.split(":", 2)
        return _rows(file, unquote(column)).read(int(row))
    return read_bytes(path)


def open_file(file: str) -> BinaryIO:
    """A file on this machine or on a network, to be read in parts."""
    address = as_address(file)
    if address is not None:
        return open_remote(address)
    return Path(file).open("rb")


def open_parquet(file: str) -> "ParquetFile":
    """A parquet file whose columns are read a little at a time."""
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
        raise EOFError("the shard breaks off before its end")
    return content


class _Rows:
    """The images of a parquet shard, read forward; going back starts a row group anew."""

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
        """The bytes of one row; one at a time, whoever asks."""
        with self.lock:
            group = bisect_right(self.firsts, row) - 1
            if group != self.group or row < self.next_row:
                batches = self.parquet.iter_batches(
                    ROWS_AT_ONCE, row_groups=[group], columns=[self.column], use_threads=False
                )
                self.cells = chain.from_iterable(batch.column(0) for batch in batches)
                self.next_row = self.firsts[group]
            self.group = -1  # where reading fails, the next row starts the group anew
            cell = next(islice(self.cells, row - self.next_row, None)).as_py()
            self.group = group
            self.next_row = row + 1
        if isinstance(cell, dict):
            cell = cell["bytes"]
        if cell is None:
            raise ValueError("the row holds no bytes of an image")
        return bytes(cell)


@lru_cache(maxsize=1)
def _rows(file: str, column: str) -> _Rows:
    return _Rows(file, column)
