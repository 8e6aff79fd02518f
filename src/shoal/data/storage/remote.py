"""Files on a network, through fsspec: listed, asked for their state, read whole or in part.

fsspec is imported where the first address is met; a collection in a local folder never needs it.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shoal.data.storage.addresses import READABLE, Address
from shoal.data.storage.retries import Lost, in_words, is_about_credentials, tried
from shoal.errors import DataError, missing_package

N_AT_ONCE = 16
"""Requests on their way together: the time goes by while the store answers."""

BUFFER_BYTES = 1 << 20
"""Bytes that are fetched at once of a file that is read in order."""

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

WHO_ASKS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, "
    "or FSSPEC_S3_ANON=true for a public bucket",
    "gs": "run `gcloud auth application-default login`, "
    "or set FSSPEC_GS_TOKEN=anon for a public bucket",
    "hf": "run `hf auth login`, or set HF_TOKEN",
}
"""How to say who asks."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What a store says of a file."""

    n_bytes: int | None
    """None where it does not say."""
    mark: str
    """Another one when the file has changed."""


@lru_cache(maxsize=8)
def file_system(scheme: str) -> Any:
    """The file system of a scheme; credentials and endpoints come from the environment, as its
    package has them."""
    if scheme not in READABLE:
        raise DataError(
            f"{scheme}://: cannot be read, expected {', '.join(f'{one}://' for one in READABLE)}, "
            "or a folder or file "
            "on this machine; download what is there, and give the path of that"
        )
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise missing_package(PACKAGES[scheme], "remote", f"reading {scheme}://") from error
    if scheme != "s3":
        return kind(skip_instance_cache=True)  # it is kept here
    once = {"retries": {"total_max_attempts": 1}}  # `tried` decides
    store = kind(skip_instance_cache=True, config_kwargs=once)
    store.retries = 1
    return store


@contextmanager
def asking(address: Address | None) -> Iterator[None]:
    """Turn what a store refuses into an error that says what to do."""
    if address is None:  # what lies on this machine explains itself
        yield
        return
    try:
        yield
    except Lost as error:
        raise DataError(
            f"{address}: {error}; check the network and the endpoint, then give the command again"
        ) from error
    except FileNotFoundError as error:
        raise DataError(
            f"{address}: there is nothing; check the name of the bucket and the path"
        ) from error
    except Exception as error:
        status = getattr(error, "status", None)
        is_refused = isinstance(error, PermissionError) or status in (401, 403)
        if is_refused or is_about_credentials(error):
            who = WHO_ASKS.get(
                address.scheme, "check whether the address needs a password, which cannot be given"
            )
            raise DataError(f"{address}: may not be read ({in_words(error)}); {who}") from error
        is_of_store = type(error).__module__.startswith(("botocore", "aiohttp"))
        if isinstance(error, OSError) or status is not None or is_of_store:
            raise DataError(
                f"{address}: cannot be read ({in_words(error)}); check the address"
            ) from error
        raise


def state_of(address: Address) -> FileState:
    """What the store says of a file; raises FileNotFoundError where it is not there."""
    store = file_system(address.scheme)
    return _state(tried(lambda: store.info(str(address))))


def state_or_none(address: Address) -> FileState | None:
    """The same, None where the file is not there; what else goes wrong is an error that says
    what to do."""
    with asking(address):
        try:
            return state_of(address)
        except FileNotFoundError:
            return None


def read_bytes(address: str, start: int | None = None, n_bytes: int | None = None) -> bytes:
    """The bytes of a file, or `n_bytes` of them from `start` on; one request, tried again where
    it fails."""
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
    state = state_of(address)
    if state.n_bytes is None:
        raise DataError(
            f"{address}: the server does not say how long the file is; copy it to this machine"
        )
    return io.BufferedReader(_Ranges(str(address), state.n_bytes), BUFFER_BYTES)


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


def _state(entry: dict[str, Any]) -> FileState:
    size = entry.get("size")
    mark = next((str(entry[name]) for name in MARKS if entry.get(name)), "")
    short = hashlib.blake2b(f"{size}\n{mark}".encode(), digest_size=8).hexdigest()
    if size is not None:
        size = int(size)
    return FileState(size, short)


class _Ranges(io.RawIOBase):
    """A file on a network as bytes that can be read from anywhere, a request per read."""

    def __init__(self, address: str, n_bytes: int) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self.at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the next byte to read."""
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.n_bytes}[whence]
        self.at = max(0, base + offset)
        return self.at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or what is left of the file."""
        n_bytes = min(len(buffer), self.n_bytes - self.at)
        if n_bytes <= 0:
            return 0
        buffer[:n_bytes] = read_bytes(self.address, self.at, n_bytes)
        self.at += n_bytes
        return n_bytes
