"""Files on a network, through fsspec: listed, described, and read whole or in ranges.

Every request goes through `tried`, the only place that decides about retries: the packages below
are told to try once. fsspec is imported on first use, so that a local folder never needs it.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shoal.data.storage.addresses import READABLE, Address
from shoal.errors import DataError, UsageError, missing_package

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

N_AT_ONCE = 16
"""Requests in flight together: the time goes by while the store answers."""

BUFFER_BYTES = 1 << 20
"""Bytes fetched at once of a file that is read in order."""

MARKS = (
    *("ETag", "etag", "md5Hash", "crc32c", "xet_hash", "blob_id", "Content-MD5", "Digest"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "mtime"),
)
"""What stores say of a file that changes with its content, the surest first."""

PACKAGES = {
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "s3": "s3fs",
    "https": "aiohttp",
    "http": "aiohttp",
}
"""The package that fsspec needs for a scheme."""

CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, "
    "or FSSPEC_S3_ANON=true for a public bucket",
    "gs": "run `gcloud auth application-default login`, "
    "or set FSSPEC_GS_TOKEN=anon for a public bucket",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}
"""How to give credentials."""

LOST = "the connection was lost"
"""How the reason begins where a connection failed as often as it may."""

TRANSIENT_STATUS = (408, 425, 429)
"""Answers of a web server below 500 that may be others a moment later."""

NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
"""Errors of the stores' packages where credentials are missing."""

PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,
)
"""What trying again does not change."""

Result = TypeVar("Result")


class Lost(OSError):
    """A connection that failed as often as it may; the message says so."""


class FileState(NamedTuple):
    """What a store says of a file."""

    n_bytes: int
    """-1 where it does not say."""
    mark: str
    """Another one when the file has changed."""


def tried(ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns, asking again after a while where the connection fails.

    $SHOAL_TRIES (5) and $SHOAL_TRY_WAIT_S (0.5, doubled each time) say how often.
    """
    try:
        import tenacity
    except ImportError as error:
        raise missing_package("tenacity", "reading from a network") from error
    n_tries = os.environ.get("SHOAL_TRIES") or "5"
    wait_s = os.environ.get("SHOAL_TRY_WAIT_S") or "0.5"
    if not n_tries.isdecimal() or int(n_tries) < 1 or not wait_s.replace(".", "", 1).isdecimal():
        raise UsageError(
            f"SHOAL_TRIES and SHOAL_TRY_WAIT_S: found {n_tries} and {wait_s}, "
            "expected a number of 1 or more, and one of 0 or more"
        )
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(int(n_tries)),
        wait=tenacity.wait_exponential(multiplier=float(wait_s)),
        retry=tenacity.retry_if_exception(_is_transient),
    )
    try:
        return retrying(ask)
    except tenacity.RetryError as failed:
        cause = _cause(failed.last_attempt.exception())
        raise Lost(f"{LOST} (tried {n_tries} times): {in_words(cause)}") from cause
    except FileNotFoundError as error:
        raise _cause(error) from error.__cause__


def _cause(error: BaseException | None) -> BaseException:
    """What is behind 'not found', which fsspec says of whatever goes wrong at a web server."""
    assert error is not None
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    is_web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, OSError)
    if is_web and getattr(cause, "status", None) not in (404, 410):
        return cause
    return error


def _is_transient(raised: BaseException) -> bool:
    error = _cause(raised)
    status = getattr(error, "status", None)  # of a web server
    if isinstance(status, int):
        return status >= 500 or status in TRANSIENT_STATUS
    if not isinstance(error, Exception):  # Ctrl-C
        return False
    return not isinstance(error, (*PERMANENT, Lost)) and not _lacks_credentials(error)


def _lacks_credentials(error: BaseException) -> bool:
    return any(kind.__name__ in NO_CREDENTIALS for kind in type(error).__mro__)


def in_words(error: BaseException) -> str:
    """An error on one line, its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


@lru_cache(maxsize=8)
def file_system(scheme: str) -> "AbstractFileSystem":
    """The file system of a scheme; its package takes credentials and endpoints from the
    environment."""
    if scheme not in READABLE:
        raise DataError(
            f"{scheme}://: cannot be read, expected {', '.join(f'{one}://' for one in READABLE)}, "
            "or a folder or file on this machine; download what is there, and give its path"
        )
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing_package(PACKAGES[scheme], f"reading {scheme}://") from error
    if scheme != "s3":
        return kind(skip_instance_cache=True)  # it is kept here
    once = {"retries": {"total_max_attempts": 1}}
    store = kind(skip_instance_cache=True, config_kwargs=once)
    store.retries = 1
    return store


@contextmanager
def asking(address: PurePath | None) -> Iterator[None]:
    """Turn what a store refuses into an error that says what to do; for local files, do nothing."""
    try:
        yield
    except Exception as error:
        if not isinstance(address, Address) or isinstance(error, DataError):
            raise
        status = getattr(error, "status", None)
        is_of_store = type(error).__module__.startswith(("botocore", "aiohttp"))
        if isinstance(error, Lost):
            problem = f"{error}; check the network and the endpoint, then give the command again"
        elif isinstance(error, FileNotFoundError):
            problem = "there is nothing; check the name of the bucket and the path"
        elif (
            isinstance(error, PermissionError) or status in (401, 403) or _lacks_credentials(error)
        ):
            remedy = CREDENTIALS.get(address.scheme, "passwords of web servers cannot be given")
            problem = f"may not be read ({in_words(error)}); {remedy}"
        elif isinstance(error, OSError) or status is not None or is_of_store:
            problem = f"cannot be read ({in_words(error)}); check the address"
        else:
            raise
        raise DataError(f"{address}: {problem}") from error


def state_of(address: Address) -> FileState:
    """What the store says of a file; raises FileNotFoundError where it is not there."""
    store = file_system(address.scheme)
    return _state(tried(lambda: store.info(str(address))))


def state_or_none(address: Address) -> FileState | None:
    """The same, None where the file is not there."""
    with asking(address):
        try:
            return state_of(address)
        except FileNotFoundError:
            return None


def read_bytes(address: str, start: int | None = None, n_bytes: int | None = None) -> bytes:
    """The bytes of a file, or `n_bytes` of them from `start` on, in one request."""
    store = file_system(address.partition(":")[0])
    end = None
    if start is not None and n_bytes is not None:
        end = start + n_bytes

    def ask() -> bytes:
        content: bytes = store.cat_file(address, start=start, end=end)
        if n_bytes is not None and len(content) > n_bytes:
            raise DataError(
                f"{address}: the server gives whole files, no ranges of bytes; copy it to this "
                "machine"
            )
        if n_bytes is not None and len(content) < n_bytes:
            raise ConnectionError(f"{len(content):,} of {n_bytes:,} bytes came")
        return content

    return tried(ask)


def open_remote(address: Address) -> io.BufferedReader:
    """A file to read in parts, forward or anywhere; little of it is in memory at once."""
    n_bytes = state_of(address).n_bytes
    if n_bytes < 0:
        raise DataError(
            f"{address}: the server does not say how long the file is; copy it to this machine"
        )
    return io.BufferedReader(_Ranges(str(address), n_bytes), BUFFER_BYTES)


def list_remote(folder: Address) -> Iterator[tuple[str, FileState]]:
    """Every file under an address, at any depth, by its name below it."""
    store = file_system(folder.scheme)
    store.invalidate_cache()
    base = str(store._strip_protocol(str(folder))).rstrip("/")
    entries = tried(lambda: store.find(base, detail=True))
    if not entries:
        raise FileNotFoundError(str(folder))
    store.invalidate_cache()  # millions of entries would stay in memory
    for path, entry in entries.items():
        if path.startswith(f"{base}/") and not path.endswith("/"):
            yield path.removeprefix(f"{base}/"), _state(entry)


def _state(entry: dict[str, str | int | None]) -> FileState:
    size = entry.get("size")
    mark = next((str(entry[name]) for name in MARKS if entry.get(name)), "")
    short = hashlib.blake2b(f"{size}\n{mark}".encode(), digest_size=8).hexdigest()
    if size is None:
        size = -1
    return FileState(int(size), short)


class _Ranges(io.RawIOBase):
    """A file on a network as bytes that can be read from anywhere, a request per read.

    fsspec's own files do not ask again where a connection fails.
    """

    def __init__(self, address: str, n_bytes: int) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self.at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.n_bytes}[whence]
        self.at = max(0, base + offset)
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n_bytes = min(len(buffer), self.n_bytes - self.at)
        if n_bytes <= 0:
            return 0
        buffer[:n_bytes] = read_bytes(self.address, self.at, n_bytes)
        self.at += n_bytes
        return n_bytes
