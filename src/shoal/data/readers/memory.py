"""What a Python caller already holds: lists of paths, PIL images, arrays."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shoal.data.readers.labels import refuse_many_absent, refuse_second_label
from shoal.data.storage.addresses import as_address
from shoal.errors import DataError
from shoal.words import count, first_few, plural


@dataclass(frozen=True)
class ListedFiles:
    """Files given one by one, under the folder that holds them all."""

    root: PurePath
    labels: dict[str, str | None]
    """Path relative to `root` -> class name, None for unlabeled."""
    notes: tuple[str, ...]


def read_paths(
    paths: Sequence[Any],
    labels: Sequence[str | None],
    folder: Path | None,
    location: Callable[[int], str],
    *,
    where: str,
    allow_missing: bool = False,
) -> ListedFiles:
    """Find listed files; relative paths start at `folder` and stay inside it, or at the working folder if None."""
    files = [_absolute(raw, folder, location(i)) for i, raw in enumerate(paths)]
    # A Path per row would cost more than the question whether it is there.
    how: dict[str, Any] = {
        "is_there": os.path.isfile,
        "where": where,
        "allow_missing": allow_missing,
    }
    chosen, notes = settle_listed(files, labels, paths, location, **how)
    root = Path(os.path.commonpath([os.path.dirname(path) for path in chosen]))  # noqa: PTH120
    return ListedFiles(
        root,
        {Path(path).relative_to(root).as_posix(): label for path, label in chosen.items()},
        notes,
    )


def settle_listed(
    files: Sequence[str],
    labels: Sequence[str | None],
    paths: Sequence[Any],
    location: Callable[[int], str],
    *,
    is_there: Callable[[str], bool],
    where: str,
    allow_missing: bool,
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """The label of each of the listed `files` that `is_there`, and notes; `paths` are the same as they are written.

    Files that are not there and files listed twice are counted; a file listed with two labels is an error, and so are
    many that are not there, unless `allow_missing`. `where` names the list in messages.
    """
    first: dict[str, int] = {}  # file -> the first row that names it
    chosen: dict[str, str | None] = {}
    absent = []
    doubled = 0
    for i, (file, label) in enumerate(zip(files, labels, strict=True)):
        if not is_there(file):
            absent.append(f"{location(i)}: {paths[i]}")
            continue
        if file in first:
            doubled += 1
            refuse_second_label(file, chosen[file], location(first[file]), label, location(i))
        first.setdefault(file, i)
        chosen[file] = chosen.get(file) or label
    if not first:
        raise DataError(
            f"none of the {len(files):,} listed images is there; the first is {absent[0] if absent else '(none)'}"
        )
    if not allow_missing:
        refuse_many_absent(where, absent, len(files))
    notes = []
    if absent:
        missing = count(len(absent), "listed image")
        notes.append(
            f"{missing} {plural(len(absent), 'is')} not there ({first_few(absent, separator='; ')})"
        )
    if doubled:
        notes.append(
            f"{count(doubled, 'row')} {plural(doubled, 'repeats')} an image with the same label or none"
        )
    return chosen, tuple(notes)


def read_images(source: Any) -> tuple[Sequence[Any] | NDArray[np.uint8], str]:
    """Check in-memory images: a uint8 array (N, H, W[, C]), or a list of PIL images or such arrays (H, W[, C])."""
    if not len(source):
        raise DataError("images: found none; give at least one")
    if isinstance(source, np.ndarray):
        _check_array(source, "images", n_leading=1)
        return source, f"an array of {source.shape[2]} x {source.shape[1]} images"
    for i, image in enumerate(source):
        if isinstance(image, np.ndarray):
            _check_array(image, f"image {i}", n_leading=0)
        elif not isinstance(image, Image.Image):
            raise DataError(
                f"image {i}: found {type(image).__name__}, expected a PIL image or a uint8 array like the rest"
            )
    return tuple(source), "a list of images in memory"


def _check_array(array: Any, where: str, *, n_leading: int) -> None:
    shape = array.shape[n_leading:]
    expected = "(N, H, W) or (N, H, W, C)" if n_leading else "(H, W) or (H, W, C)"
    if array.dtype != np.uint8:
        raise DataError(
            f"{where}: found dtype {array.dtype}, expected uint8 pixels from 0 to 255; convert them"
        )
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)) or 0 in shape:
        raise DataError(
            f"{where}: found shape {array.shape}, expected {expected} with C = 1, 3 or 4; transpose it"
        )


def _absolute(raw: Any, folder: Path | None, location: str) -> str:
    if not isinstance(raw, str | os.PathLike) or not os.fspath(raw):
        raise DataError(
            f"{location}: found {str(raw)[:40]!r} as the path of an image; every row needs one"
        )
    if as_address(raw) is not None:
        raise DataError(
            f"{location}: {raw!r} is an address, others lie on this machine; give one or the other"
        )
    path = os.path.normpath(os.path.join(folder or Path.cwd(), raw))  # noqa: PTH118
    if (
        folder is not None
        and not os.path.isabs(raw)  # noqa: PTH117
        and Path(os.path.commonpath([path, folder])) != folder
    ):
        raise DataError(
            f"{location}: {os.fspath(raw)!r} leads out of {folder}; give paths inside it, or absolute ones"
        )
    return path
