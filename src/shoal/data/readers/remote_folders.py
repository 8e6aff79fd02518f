"""Images on a network: every one below an address, or those that a table lists by their addresses."""

import os
import posixpath
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.readers.folders import IMAGE_SUFFIXES, FolderContents, Listing, is_image, notes_of
from shoal.data.readers.memory import ListedFiles, settle_listed
from shoal.data.storage.addresses import Address, as_address, why_unfit
from shoal.data.storage.remote import N_AT_ONCE, FileState, asking, list_remote, state_of
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError
from shoal.words import count, first_few

WEB = ("http", "https")


@dataclass(frozen=True, eq=False)
class RemoteFolder:
    """What lies below an address."""

    listing: Listing
    files: StoredFiles | None
    """None where there are no images."""
    shards: tuple[str, ...]
    """The suffixes of files that may be shards."""


def list_remote_folder(address: Address) -> RemoteFolder:
    """List every image below an address, at any depth; names with a leading dot are left out, as in a local folder."""
    if address.scheme in WEB:
        raise DataError(
            f"{address}: a web server lists no folders; give a table of addresses (csv, tsv, jsonl, parquet), a .tar "
            "or a .parquet shard that lies there"
        )
    contents = FolderContents()
    states = dict[str, FileState]()
    shards = set[str]()
    left_out: list[tuple[str, str]] = []
    with asking(address):
        for name, state in list_remote(address):
            if any(
                part.startswith(".") or part == "__MACOSX"
                for part in name.split("/")
                if part != ".."
            ):
                contents.hidden += name.lower().endswith(IMAGE_SUFFIXES)
                continue
            shards |= {suffix for suffix in (".tar", ".parquet") if name.lower().endswith(suffix)}
            if is_image(name, contents):
                reason = why_unfit(name)
                if reason is None:
                    states[name] = state
                else:
                    left_out.append((ascii(name)[1:-1], reason))
    notes = notes_of(contents)
    if left_out:
        n_files = count(len(left_out), "file")
        notes = (
            *notes,
            f"{n_files} left out, with a name that cannot be used: {first_few([name for name, _ in left_out])}",
        )
    names = tuple(sorted(states))
    listing = Listing(names, tuple(sorted(contents.tables)), notes, tuple(sorted(left_out)))
    files = _stored(str(address), [states[name] for name in names]) if names else None
    return RemoteFolder(listing, files, tuple(sorted(shards)))


def are_addresses(paths: Sequence[Any]) -> bool:
    """Whether a list, by its first entry, is one of addresses."""
    first = next((path for path in paths if isinstance(path, str | os.PathLike)), "")
    return as_address(first) is not None


def read_addresses(
    paths: Sequence[Any],
    labels: Sequence[str | None],
    folder: Any,
    location: Callable[[int], str],
    *,
    where: str,
    allow_missing: bool = False,
) -> tuple[ListedFiles, StoredFiles]:
    """Find listed images on a network; relative paths start where the table lies. As `read_paths` for local files."""
    addresses = [_address(raw, folder, location(i)) for i, raw in enumerate(paths)]
    states = _states(list(dict.fromkeys(addresses)))
    how: dict[str, Any] = {"is_there": lambda one: states[one] is not None, "where": where}
    chosen, notes = settle_listed(
        addresses, labels, paths, location, allow_missing=allow_missing, **how
    )
    root = _common(list(chosen))
    stored = _stored(root, [state for one in sorted(chosen) if (state := states[one]) is not None])
    return ListedFiles(
        Address(root), {one.removeprefix(root): chosen[one] for one in chosen}, notes
    ), stored


def _stored(where: str, states: Sequence[FileState]) -> StoredFiles:
    n_bytes = np.array(
        [-1 if one.n_bytes is None else one.n_bytes for one in states], dtype=np.int64
    )
    return StoredFiles(where=where, states=tuple(one.mark for one in states), n_bytes=n_bytes)


def _states(addresses: Sequence[str]) -> dict[str, FileState | None]:
    def ask(address: str) -> FileState | None:
        try:
            with asking(Address(address)):
                return state_of(Address(address))
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        return dict(zip(addresses, threads.map(ask, addresses), strict=True))


def _address(raw: Any, folder: Any, location: str) -> str:
    if not isinstance(raw, str | os.PathLike) or not os.fspath(raw):
        raise DataError(
            f"{location}: found {str(raw)[:40]!r} as the path of an image; every row needs one"
        )
    given = as_address(raw)
    if given is not None:
        reason = why_unfit(str(given).partition("://")[2])
        if reason is not None:
            raise DataError(
                f"{location}: {str(given)!r}: {reason}; write the address of the image itself"
            )
        return str(given)
    inside = posixpath.normpath(os.fspath(raw))
    if not isinstance(folder, Address):
        raise DataError(
            f"{location}: {raw!r} lies on this machine, others on a network; give one or the other"
        )
    if why_unfit(inside) is not None:
        raise DataError(
            f"{location}: {raw!r} leads out of {folder}; give paths inside it, or addresses"
        )
    return str(folder / inside)


def _common(addresses: Sequence[str]) -> str:
    """The longest part, up to a slash, that all addresses begin with; they have the scheme in common at least."""
    schemes = {Address(one).scheme for one in addresses}
    if len(schemes) > 1:
        raise DataError(
            f"found addresses of {' and '.join(sorted(schemes))}; give images of one kind of store at a time"
        )
    folders = [one.partition("://")[2].rpartition("/")[0] for one in addresses]
    start = os.path.commonpath(folders)
    return f"{schemes.pop()}://{start}/" if start else f"{schemes.pop()}://"
