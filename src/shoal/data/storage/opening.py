"""How an image is opened that is no file of its own on this machine.

A string says where it lies, so that a decoding worker can be told: the address of a file;
`range:START:SIZE:FILE`, bytes of a tar shard; `row:NUMBER:COLUMN:FILE`, a row of a parquet shard.
FILE is an address, or a path on this machine.
"""

import re
import threading
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from shoal.data.storage.addresses import READABLE, as_address
from shoal.data.storage.remote import open_remote, read_bytes
from shoal.errors import missing_package

STORED = re.compile(rf"(range|row|{'|'.join(READABLE)}):")

ROWS_AT_ONCE = 8
"""Rows of a parquet shard that are in memory at once."""

BUFFER_BYTES = 1 << 20
"""Bytes of a parquet shard that are read at once."""


def range_of(file: str, start: int, n_bytes: int) -> str:
    """The range of bytes of an image in a tar shard."""
    return f"range:{start}:{n_bytes}:{file}"


def row_of(file: str, row: int, column: str) -> str:
    """The row of an image in a parquet shard."""
    return f"row:{row}:{quote(column, safe='')}:{file}"


def is_stored(path: str) -> bool:
    """Whether this is one of the strings above, and no path on this machine."""
    return STORED.match(path) is not None


def is_in_parquet(path: str) -> bool:
    """Whether this is a row of a parquet shard."""
    return path.startswith("row:")


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


def _read_range(file: str, start: int, n_bytes: int) -> bytes:
    if as_address(file) is not None:
        if n_bytes == 0:
            return b""
        return read_bytes(file, start, n_bytes)
    with open(file, "rb") as shard:  # noqa: PTH123
        shard.seek(start)
        content = shard.read(n_bytes)
    if len(content) < n_bytes:
        raise EOFError("the shard breaks off before its end")
    return content


class _Rows:
    """The images of a parquet shard, read forward; a row before the last one starts its row
    group anew."""

    def __init__(self, file: str, column: str) -> None:
        self.column = column
        self.parquet = open_parquet(file)
        sizes = [
            self.parquet.metadata.row_group(i).num_rows for i in range(self.parquet.num_row_groups)
        ]
        self.firsts = list(accumulate(sizes, initial=0))
        self.group = -1
        self.first = 0
        self.batch = list[Any]()
        self.batches = iter(())
        self.lock = threading.Lock()

    def read(self, row: int) -> bytes:
        """The bytes of one row; one at a time, whoever asks."""
        with self.lock:
            try:
                return self._read(row)
            except Exception:  # the next row of the group must not go on from a reader that failed
                self.group = -1
                raise

    def _read(self, row: int) -> bytes:
        group = bisect_right(self.firsts, row) - 1
        if group != self.group or row < self.first:
            self.batches = self.parquet.iter_batches(
                ROWS_AT_ONCE, row_groups=[group], columns=[self.column], use_threads=False
            )
            self.group = group
            self.first = self.firsts[group]
            self.batch = []
        while row >= self.first + len(self.batch):
            self.first += len(self.batch)
            self.batch = next(self.batches).column(0).to_pylist()
        cell = self.batch[row - self.first]
        if isinstance(cell, dict):
            cell = cell.get("bytes")
        if cell is None:
            raise ValueError("the row holds no bytes of an image")
        return bytes(cell)


@lru_cache(maxsize=1)
def _rows(file: str, column: str) -> _Rows:
    return _Rows(file, column)


def open_parquet(file: str) -> Any:
    """A parquet file whose columns are read a little at a time; what pyarrow raises is the
    caller's to explain."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet", f"reading {file}") from error
    address = as_address(file)
    where: Any = file
    if address is not None:
        where = open_remote(address)
    return pyarrow.parquet.ParquetFile(where, buffer_size=BUFFER_BYTES, pre_buffer=False)
