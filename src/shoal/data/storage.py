"""Network addresses as paths; list and read their files through fsspec; open images in shards.

The location of an image on a network or in a shard is a string, which can be sent to a decoding
worker: the address of a file; `range:START:SIZE:FILE`, bytes of a tar shard;
`row:NUMBER:COLUMN:FILE`, a row of a parquet shard. FILE is an address or a local path. Workers
import this module, so it does not import numpy.

Every request goes through `with_retries`; the packages below are configured to try once. fsspec is
imported on first use, so that local folders do not need it.
"""

import hashlib
import io
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, chain, islice
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import unquote

from shoal.errors import DataError, ShoalError, missing_package, one_line, shown
from shoal.files import absolute_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyarrow import Scalar
    from pyarrow.parquet import ParquetFile

ADDRESS = re.compile(r"(https?|ftp|s3|gs|az|hf|ssh|sftp|file):/{1,2}\w", re.IGNORECASE)
N_REQUESTS = 16

# Bytes per request for a file that is read in order
BUFFER_BYTES = 1 << 20

# Rows of a parquet shard per batch in memory
BATCH_ROWS = 8

# Properties of a file that change with its content, in order of preference
MARKS = (
    *("ETag", "etag", "md5Hash", "crc32c", "xet_hash", "blob_id", "Content-MD5", "Digest"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "mtime"),
)

# The package that fsspec needs for each scheme that can be read
PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "https": "aiohttp",
    "http": "aiohttp",
    "hf": "huggingface_hub",
}

STORED = re.compile(rf"(range|row|{'|'.join(PACKAGES)}):")

CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, "
    "or FSSPEC_S3_ANON=true for a public bucket",
    "gs": "run `gcloud auth application-default login`, "
    "or set FSSPEC_GS_TOKEN=anon for a public bucket",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}

# Start of the message of `Lost`
LOST = "the connection was lost"

# Errors of the stores' packages about missing credentials
NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)

# Errors that a retry does not change
PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,
)


class Address(PurePosixPath):
    """An address as a path, with a name, a suffix and a parent; written with both slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    @property
    def scheme(self) -> str:
        return str(self).partition(":")[0]

    @property
    def suffix(self) -> str:
        """The suffix of the file in lower case, without a query."""
        return PurePosixPath(self.name.partition("?")[0]).suffix.lower()


# A local path or an address
Location = str | os.PathLike[str]

# An absolute local path, or an address
Place = Path | Address


def as_address(location: Location) -> Address | None:
    """Return an address, or None for a local path; a `Path` of an address has lost a slash."""
    text = os.fspath(location)
    if not ADDRESS.match(text) or Path(location).exists():
        return None
    scheme, _, rest = text.partition(":")
    return Address(f"{scheme.lower()}:/{rest.lstrip('/')}")


def absolute(location: Location) -> Place:
    """Return an address unchanged, or the absolute path of a local file."""
    return as_address(location) or absolute_path(location)


def why_unfit(name: str) -> str | None:
    """Return why a name in a store or shard cannot be the name of an image, or None."""
    has_drive = re.match(r"[A-Za-z]:[/\\]", name) is not None
    leads_out = has_drive or not set(name.split("/")).isdisjoint({"", ".", ".."})
    if leads_out or shown(name) != name:  # those that are not UTF-8 are shown differently
        return (
            "the name leads out of the collection, is not UTF-8, or has an empty part or control "
            "characters"
        )
    return None


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: undecodable file names cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


Result = TypeVar("Result")


class Lost(OSError):
    """A connection that failed in all attempts."""


def with_retries(request: Callable[[], Result]) -> Result:
    """Return the result of a request, with retries if the connection fails.

    $SHOAL_TRIES (5) is the number of attempts, $SHOAL_TRY_WAIT_S (0.5) the first wait, which
    doubles each time.
    """
    import tenacity

    n_tries = int(os.environ.get("SHOAL_TRIES") or 5)
    wait_s = float(os.environ.get("SHOAL_TRY_WAIT_S") or 0.5)
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(n_tries),
        wait=tenacity.wait_exponential(multiplier=wait_s),
        retry=tenacity.retry_if_exception(_is_transient),
    )
    try:
        return retrying(request)
    except tenacity.RetryError as failed:
        cause = _cause(failed.last_attempt.exception())
        raise Lost(f"{LOST} (tried {n_tries} times): {one_line(cause)}") from cause
    except FileNotFoundError as error:
        raise _cause(error) from error.__cause__


def _cause(error: BaseException | None) -> BaseException:
    """Return the cause of 'not found', which fsspec raises for any error of a web server."""
    assert error is not None
    cause = error.__cause__
    is_web = isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")
    is_absent = getattr(cause, "status", None) in (404, 410)
    if cause is not None and isinstance(error, FileNotFoundError) and is_web and not is_absent:
        return cause
    return error


def _is_transient(raised: BaseException) -> bool:
    error = _cause(raised)
    status = getattr(error, "status", None)  # HTTP
    if isinstance(status, int):
        return status >= 500 or status in (408, 425, 429)
    if not isinstance(error, Exception):  # Ctrl-C
        return False
    return not isinstance(error, (*PERMANENT, Lost)) and not _lacks_credentials(error)


def _lacks_credentials(error: BaseException) -> bool:
    return any(kind.__name__ in NO_CREDENTIALS for kind in type(error).__mro__)


@lru_cache(maxsize=8)
def file_system(scheme: str) -> "AbstractFileSystem":
    """Return the file system of a scheme, with credentials and endpoints of the environment."""
    if scheme not in PACKAGES:
        raise DataError(
            f"{scheme}://: cannot be read, expected {', '.join(f'{name}://' for name in PACKAGES)}"
            " or a local path; download the files and give their path"
        )
    try:
        import fsspec
        import tenacity  # noqa: F401  (for `with_retries`)

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing_package(PACKAGES[scheme], f"reading {scheme}://") from error
    if scheme != "s3":
        return kind(skip_instance_cache=True)  # `lru_cache` does it
    once = {"retries": {"total_max_attempts": 1}}
    store = kind(skip_instance_cache=True, config_kwargs=once)
    store.retries = 1
    return store


@contextmanager
def reading(place: PurePath, kind: str = "file") -> Iterator[None]:
    """Turn any error into a `DataError` with a remedy: readers raise anything for a damaged
    file, and stores for a lost connection."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        problem = f"cannot be read as a {kind} ({one_line(error)}); copy or create it again"
        is_store_error = (
            isinstance(error, OSError)
            or type(error).__module__.startswith(("botocore", "aiohttp"))
            or _lacks_credentials(error)
        )
        if isinstance(error, Lost):
            problem = f"{error}; check the network and the endpoint, then run the command again"
        elif isinstance(place, Address) and is_store_error:
            remedy = CREDENTIALS.get(place.scheme, "web servers with passwords are not supported")
            problem = f"cannot be read or found ({one_line(error)}); check the address, or {remedy}"
        raise DataError(f"{place}: {problem}") from error


def file_info(address: Address) -> dict[str, str | int | None]:
    """Return what a store knows of a file; raise FileNotFoundError if it does not exist."""
    store = file_system(address.scheme)
    return with_retries(lambda: store.info(str(address)))


def remote_state(address: Address) -> str | None:
    """Return what changes with a remote file, or None if it does not exist."""
    with reading(address):
        try:
            return _state(file_info(address))
        except FileNotFoundError:
            return None


def read_bytes(address: str, start: int | None = None, n_bytes: int | None = None) -> bytes:
    """Return the bytes of a file, or `n_bytes` of them from `start`, in one request."""
    store = file_system(address.partition(":")[0])
    end = None
    if start is not None and n_bytes is not None:
        end = start + n_bytes

    def request() -> bytes:
        content = store.cat_file(address, start=start, end=end)
        if n_bytes is not None and len(content) > n_bytes:
            raise DataError(
                f"{address}: the server does not support ranges of bytes; download the file"
            )
        if n_bytes is not None and len(content) < n_bytes:
            raise ConnectionError(f"received {len(content):,} of {n_bytes:,} bytes")
        return content

    return with_retries(request)


def list_remote(folder: Address) -> Iterator[tuple[str, str]]:
    """Yield every file under an address at any depth: its name below it, and its state."""
    store = file_system(folder.scheme)
    store.invalidate_cache()
    base = str(store._strip_protocol(str(folder))).rstrip("/")
    entries = with_retries(lambda: store.find(base, detail=True))
    if not entries:
        raise FileNotFoundError(str(folder))
    store.invalidate_cache()  # else millions of entries would stay in memory
    for path, entry in entries.items():
        if path.startswith(f"{base}/") and not path.endswith("/"):
            yield path.removeprefix(f"{base}/"), _state(entry)


def _state(entry: dict[str, str | int | None]) -> str:
    """Return a checksum of the size and version of a file."""
    mark = next((str(entry[name]) for name in MARKS if entry.get(name)), "")
    identity = f"{entry.get('size')}\n{mark}"
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


class _Ranges(io.RawIOBase):
    """A remote file with random access, one request per read.

    fsspec's own files do not retry.
    """

    def __init__(self, address: str, n_bytes: int) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.n_bytes}[whence]
        self.position = max(0, base + offset)
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n_bytes = min(len(buffer), self.n_bytes - self.position)
        if n_bytes <= 0:
            return 0
        buffer[:n_bytes] = read_bytes(self.address, self.position, n_bytes)
        self.position += n_bytes
        return n_bytes


def is_stored(path: str) -> bool:
    """Return whether this is such a location, not a local path."""
    return STORED.match(path) is not None


def read_stored(path: str) -> bytes:
    kind, _, rest = path.partition(":")
    if kind == "range":
        start, n_bytes, file = rest.split(":", 2)
        return _read_range(file, int(start), int(n_bytes))
    if kind == "row":
        row, column, file = rest.split(":", 2)
        return _rows(file, unquote(column)).read(int(row))
    return read_bytes(path)


def open_file(file: str) -> BinaryIO:
    """Open a local or remote file for random access; a remote one with a small buffer."""
    address = as_address(file)
    if address is None:
        return Path(file).open("rb")
    n_bytes = file_info(address).get("size")
    if n_bytes is None:
        raise DataError(f"{address}: the server does not report the size of the file; download it")
    return io.BufferedReader(_Ranges(str(address), int(n_bytes)), BUFFER_BYTES)


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


_rows = lru_cache(maxsize=1)(_Rows)
