"""Images that a table or a caller lists one by one, on this machine or on a network."""

import os
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePath

from shoal.data.readers.folders import Listing
from shoal.data.readers.labels import as_path, label_rows
from shoal.data.readers.tables import Table
from shoal.data.storage.addresses import Address, as_address, why_unfit
from shoal.data.storage.remote import N_AT_ONCE, FileState, state_or_none
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError


def list_files(
    table: Table, path_column: str, labels: Sequence[str | None], *, allow_missing: bool
) -> Listing:
    """Find listed files; relative paths start where the table lies, without one at the working
    folder.

    Files that are not there and files listed twice are counted; a file listed with two labels is an
    error, and so are many that are not there, unless `allow_missing`.
    """
    paths = [as_path(cell, table.location(i)) for i, cell in enumerate(table.columns[path_column])]
    is_remote = isinstance(table.folder, Address) or as_address(paths[0]) is not None
    files = [_locate(path, table, table.location(i), is_remote) for i, path in enumerate(paths)]
    states = dict[str, FileState]()
    if is_remote:
        states = _states(list(dict.fromkeys(files)))
    # A Path per row would cost more than the question whether it is there.
    there = set(states) or {file for file in files if os.path.isfile(file)}  # noqa: PTH113
    rows = label_rows(
        replace(table, columns={path_column: files}),
        path_column,
        labels,
        lambda file, location: str(file) if file in there else None,
        allow_missing=allow_missing,
    )
    if not rows.labels:
        raise DataError(
            f"none of the {len(files):,} listed images is there; the first is {rows.absent[0]}"
        )
    start = os.path.commonpath([os.path.dirname(file) for file in rows.labels])  # noqa: PTH120
    where = os.path.join(start, "")  # noqa: PTH118
    root: PurePath = Path(start)
    stored = None
    if is_remote:
        if not start:
            raise DataError(f"{table.where}: found addresses of several stores; give one at a time")
        where = f"{start.replace(':', ':/', 1)}/"  # `commonpath` has taken one of two slashes
        root = Address(where)
        stored = StoredFiles.of_states(where, [states[file] for file in sorted(rows.labels)])
    by_name = {
        file.removeprefix(where).replace(os.sep, "/"): label for file, label in rows.labels.items()
    }
    return Listing(
        root, sorted(by_name), labels=by_name, notes=rows.notes, stored=stored, folders=()
    )


def _locate(path: str, table: Table, location: str, is_remote: bool) -> str:
    """The absolute path or the address of a listed file."""
    address = as_address(path)
    if address is None and isinstance(table.folder, Address):
        address = table.folder / posixpath.normpath(path)
    if (address is not None) != is_remote:
        kind = "a path on this machine" if address is None else "an address"
        raise DataError(f"{location}: {path!r} is {kind}, unlike others; give one or the other")
    if address is not None:
        reason = why_unfit(str(address).partition("://")[2])
        if reason is not None:
            raise DataError(f"{location}: {path!r}: {reason}; write the address of the image")
        return str(address)
    folder = str(table.folder or Path.cwd())
    absolute = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118
    is_relative = table.folder is not None and not os.path.isabs(path)  # noqa: PTH117
    if is_relative and os.path.commonpath([absolute, folder]) != folder:
        raise DataError(
            f"{location}: {path!r} leads out of {folder}; give paths inside it, or absolute ones"
        )
    return absolute


def _states(addresses: Sequence[str]) -> dict[str, FileState]:
    """What the store says of each file that is there."""
    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        asked = threads.map(lambda address: state_or_none(Address(address)), addresses)
        answers = zip(addresses, asked, strict=True)
        return {address: state for address, state in answers if state is not None}
