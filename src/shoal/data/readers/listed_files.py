"""Images that a table or a caller lists one by one, on this machine or on a network."""

import os
import posixpath
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

from shoal.data.readers.folders import Listing
from shoal.data.readers.labels import RowLabels
from shoal.data.readers.tables import Table
from shoal.data.storage.addresses import Address, as_address, why_unfit
from shoal.data.storage.remote import N_AT_ONCE, FileState, state_or_none
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError


@dataclass(frozen=True)
class ListedFiles:
    """Files given one by one, under the folder or address that holds them all."""

    root: PurePath
    listing: Listing
    labels: dict[str, str | None]
    """Name -> class name, None for unlabeled."""


def read_listed_files(
    table: Table, path_column: str, labels: Sequence[str | None], *, allow_missing: bool
) -> ListedFiles:
    """Find listed files; relative paths start where the table lies, without one at the working
    folder.

    Files that are not there and files listed twice are counted; a file listed with two labels is an
    error, and so are many that are not there, unless `allow_missing`.
    """
    paths = [_as_path(raw, table.location(i)) for i, raw in enumerate(table.columns[path_column])]
    if isinstance(table.folder, Address) or (paths and as_address(paths[0]) is not None):
        return _read_addresses(table, paths, labels, allow_missing)
    files = [_absolute(path, table.folder, table.location(i)) for i, path in enumerate(paths)]
    # A Path per row would cost more than the question whether it is there.
    rows = _label_files(files, table, paths, labels, os.path.isfile, allow_missing)
    root = Path(os.path.commonpath([os.path.dirname(file) for file in rows.labels]))  # noqa: PTH120
    by_name = {Path(file).relative_to(root).as_posix(): rows.labels[file] for file in rows.labels}
    return ListedFiles(root, Listing(tuple(sorted(by_name)), (), rows.notes), by_name)


def _read_addresses(
    table: Table, paths: Sequence[str], labels: Sequence[str | None], allow_missing: bool
) -> ListedFiles:
    addresses = [_address(path, table.folder, table.location(i)) for i, path in enumerate(paths)]
    states = _states(list(dict.fromkeys(addresses)))
    rows = _label_files(addresses, table, paths, labels, states.__contains__, allow_missing)
    root = _common(list(rows.labels))
    by_name = {address.removeprefix(root): label for address, label in rows.labels.items()}
    stored = StoredFiles.of_states(root, [states[address] for address in sorted(rows.labels)])
    listing = Listing(tuple(sorted(by_name)), (), rows.notes, stored=stored)
    return ListedFiles(Address(root), listing, by_name)


def _label_files(
    files: Sequence[str],
    table: Table,
    paths: Sequence[str],
    labels: Sequence[str | None],
    is_there: Callable[[str], bool],
    allow_missing: bool,
) -> RowLabels:
    """The label of each of the `files` that are there; `paths` are the same as the table has
    them."""
    rows = RowLabels()
    for i, (file, label) in enumerate(zip(files, labels, strict=True)):
        rows.add(file if is_there(file) else None, label, table.location(i), paths[i])
    if not rows.labels:
        raise DataError(
            f"none of the {len(files):,} listed images is there; the first is {rows.absent[0]}"
        )
    if not allow_missing:
        rows.refuse_many_absent(table.where)
    return rows


def _as_path(raw: object, location: str) -> str:
    if isinstance(raw, str | os.PathLike) and os.fspath(raw):
        return os.fspath(raw)
    raise DataError(
        f"{location}: found {str(raw)[:40]!r} as the path of an image; every row needs one"
    )


def _absolute(path: str, folder: Path | None, location: str) -> str:
    if as_address(path) is not None:
        raise DataError(
            f"{location}: {path!r} is an address, others lie on this machine; give one or the other"
        )
    absolute = os.path.normpath(os.path.join(folder or Path.cwd(), path))  # noqa: PTH118
    is_relative = folder is not None and not os.path.isabs(path)  # noqa: PTH117
    if is_relative and os.path.commonpath([absolute, str(folder)]) != str(folder):
        raise DataError(
            f"{location}: {path!r} leads out of {folder}; give paths inside it, or absolute ones"
        )
    return absolute


def _address(path: str, folder: Path | Address | None, location: str) -> str:
    address = as_address(path)
    if address is None and isinstance(folder, Address):
        address = folder / posixpath.normpath(path)
    if address is None:
        raise DataError(
            f"{location}: {path!r} lies on this machine, others on a network; give one or the other"
        )
    reason = why_unfit(str(address).partition("://")[2])
    if reason is not None:
        raise DataError(f"{location}: {path!r}: {reason}; write the address of the image itself")
    return str(address)


def _states(addresses: Sequence[str]) -> dict[str, FileState]:
    """What the store says of each file that is there."""
    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        states = threads.map(lambda address: state_or_none(Address(address)), addresses)
        return {
            address: state
            for address, state in zip(addresses, states, strict=True)
            if state is not None
        }


def _common(addresses: Sequence[str]) -> str:
    """The longest part, up to a slash, that all addresses begin with; they have the scheme in
    common at least."""
    schemes = {Address(address).scheme for address in addresses}
    if len(schemes) > 1:
        raise DataError(
            f"found addresses of {' and '.join(sorted(schemes))}; give images of one kind of "
            "store at a time"
        )
    scheme = schemes.pop()
    folders = [address.partition("://")[2].rpartition("/")[0] for address in addresses]
    start = os.path.commonpath(folders)
    if not start:
        return f"{scheme}://"
    return f"{scheme}://{start}/"
