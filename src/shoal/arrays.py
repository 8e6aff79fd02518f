"""Checks of embeddings and labels at the entry points, checksums, and cached arrays; all other code
trusts its input.

The key of a cached array contains everything that its bits depend on.

Shapes: N rows, D columns. Unlabeled is -1.
"""

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike, NDArray

from shoal.errors import DataError, ShoalError, UsageError, count, first_few, plural
from shoal.files import atomic_file, cache_folder, make_folder

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNLABELED = -1
"""The label of an unlabeled image, and the class of an image that belongs to none."""

# Strings that mean 'no label', in any case; numpy turns NaN in a list of names into a string
UNLABELED_NAMES = ("nan", "unlabeled", "unlabelled", "unknown")

# A string that is a number; pandas writes integers as '3.0' if a column has missing values
NUMBER = re.compile(r"\s*(-?\d+)(\.\d*)?\s*", re.ASCII)

# Numbers of an array in memory at a time; it may be a file larger than the memory
BLOCK_NUMBERS = 1 << 22


def archive_arrays(archive: NpzFile) -> dict[str, NDArray[Any]]:
    """Return the arrays of an open npz.

    A member that is not an array is an error; numpy returns it as bytes.
    """
    arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is not an array")
    return arrays


def as_stored_embeddings(x: ArrayLike, *, name: str = "X") -> Floats:
    """Return a checked (N, D) matrix of finite numbers without rows of zeros, which have no
    direction; float16 stays, so that a memory map is not read into memory."""
    matrix = as_matrix(x, name=name)
    bad = unusable_rows(matrix)
    if bad.any():
        raise DataError(
            f"{name}: NaN, infinity or only zeros in {name_rows(bad)}; remove or repair them"
        )
    return matrix


def unusable_rows(x: NDArray[Any]) -> Bools:
    """Return which rows of `x` (N, D), read in blocks, hold NaN, infinity or only zeros: (N,)."""
    step = max(1, BLOCK_NUMBERS // max(1, x.shape[1]))
    bad = np.zeros(len(x), dtype=bool)
    for start in range(0, len(x), step):
        rows = x[start : start + step]
        bad[start : start + step] = ~(np.isfinite(rows).all(axis=1) & rows.any(axis=1))
    return bad


def as_matrix(x: ArrayLike, *, name: str = "X", min_rows: int = 1) -> Floats:
    """Return an (N, D) matrix of numbers with dtype and shape checked, not its values; integers
    become float64."""
    try:
        matrix = np.asarray(x)
    except ValueError as error:
        raise DataError(f"{name}: found rows of different lengths, expected (N, D)") from error
    if matrix.dtype.kind not in "fiub":
        raise DataError(f"{name}: found dtype {matrix.dtype}, expected numbers")
    if matrix.ndim != 2 or len(matrix) < min_rows or matrix.shape[1] < 1:
        raise DataError(
            f"{name}: found shape {matrix.shape}, expected (N, D), a row per image and at least "
            f"{count(min_rows, 'row')}"
        )
    if matrix.dtype not in (np.float16, np.float32, np.float64):
        matrix = matrix.astype(np.float64)
    if isinstance(x, np.ma.MaskedArray):
        matrix = np.where(np.ma.getmaskarray(x), np.nan, matrix)
    return matrix


def as_labels(y: ArrayLike, n_rows: int, *, name: str = "y") -> Ints:
    """Return N checked integer labels, -1 for unlabeled and none below."""
    labels = np.asarray(y)
    if labels.shape != (n_rows,):
        raise DataError(
            f"{name}: found shape {labels.shape}, expected ({n_rows},), one label per row"
        )
    is_whole = labels.dtype.kind in "iuf" and np.isfinite(labels) & (labels == np.trunc(labels))
    if not np.all(is_whole) or (labels < UNLABELED).any():
        raise DataError(
            f"{name}: found dtype {labels.dtype}, expected whole numbers from 0 up, or -1 for "
            "unlabeled"
        )
    return labels.astype(np.int64)


def is_missing(label: object) -> bool:
    """Return whether a label is None, NaN, NA or NaT."""
    if isinstance(label, float | np.floating | Decimal):
        return bool(label != label)
    # pandas' types, without importing pandas
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def nan_to_null(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None, in mappings and lists; arrays and tuples
    become lists."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: nan_to_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_null(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value


def as_class(label: object) -> Any:
    """Return the class of a label from an array or a file, None for unlabeled.

    Unlabeled are None, NaN, NA, NaT, the number -1, blank strings and `UNLABELED_NAMES`, in any
    case. An integral number becomes an int, and a string of one its digits: '3.0' is '3'.
    True and False are the names 'True' and 'False', as tables write them. Fractions and numbers
    below -1 raise an error, also as strings. Spaces around a string do not count. Anything else is
    returned unchanged.
    """
    if is_missing(label):
        return None
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bool | Decimal):
        label = str(label)
    if isinstance(label, int | float):
        return _class_of_number(label)
    if not isinstance(label, str):
        return label
    text = label.strip()
    if not text or text.casefold() in UNLABELED_NAMES:
        return None
    number = NUMBER.fullmatch(label)
    if number is None:
        return text
    if _class_of_number(float(label)) is None:
        return None
    return number[1].removeprefix("-")  # '-0.0' is 0


def _class_of_number(label: float) -> int | None:
    if label == UNLABELED:
        return None
    if label < UNLABELED or (isinstance(label, float) and not label.is_integer()):
        raise DataError(
            f"labels: found {label}, expected whole numbers from 0 up, names, or -1 for unlabeled"
        )
    return int(label)


def sort_classes(classes: Iterable[Any]) -> list[Any]:
    """Return the classes sorted, by number if all names are integers: '2' before '10'."""
    names = list(classes)
    if all(isinstance(name, str) and name.isascii() and name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def as_count(value: object, *, name: str, least: int | None = None) -> int:
    """Return a checked integer of at least `least`; 4.0, '4' and True raise an error."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UsageError(f"{name}: found {value!r}, expected a whole number")
    if least is not None and value < least:
        raise UsageError(f"{name}: found {value}, expected at least {least}")
    return int(value)


def as_number(value: object, *, name: str) -> float:
    """Return a checked real number; NaN passes, so the caller compares it with its bounds."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise UsageError(f"{name}: found {value!r}, expected a number")
    return float(value)


def name_rows(mask: Bools) -> str:
    """Describe the True rows by the first few and their number: 'rows 3, 8, 9 (3 of 100)'."""
    rows = np.flatnonzero(mask)
    named = first_few([str(row) for row in rows[:4]])
    return f"{plural(len(rows), 'row')} {named} ({len(rows):,} of {len(mask):,})"


def digest_names(names: Sequence[str], labels: Ints) -> str:
    digest = hashlib.sha256(labels.tobytes())
    digest.update("\0".join(names).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def digest_rows(array: Any) -> str:
    """Return a short checksum of the shape and all rows of an array, memory map or tensor."""
    digest = hashlib.sha256(f"{tuple(array.shape)}".encode())
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        if hasattr(rows, "cpu"):  # a tensor; torch is not imported here
            rows = rows.cpu().numpy()
        digest.update(np.ascontiguousarray(rows).reshape(-1).data)
    return digest.hexdigest()[:16]


def read_cached(kind: str, key: str, part: int = 0) -> NDArray[Any] | None:
    """Return a cached array, memory-mapped, and mark it as used; None if there is none, or if the
    file is damaged."""
    found = None
    for file in _cached_folder(kind, key).glob(f"{part}-*.npy"):
        with contextlib.suppress(OSError, ValueError):  # not readable, or not a whole array
            # Copy on write: torch warns about arrays that are read-only.
            stored = np.load(file, mmap_mode="c", allow_pickle=False)
            if file.name == _cached_name(stored, part):
                found = stored
                os.utime(file.parent)
    return found


def write_cached(kind: str, key: str, array: NDArray[Any], part: int = 0) -> None:
    """Cache an array in a file named by its checksum; do nothing if the cache cannot be
    written."""
    folder = _cached_folder(kind, key)
    with contextlib.suppress(ShoalError):
        make_folder(folder)
        with atomic_file(folder / _cached_name(array, part)) as file:
            np.save(file, array, allow_pickle=False)


def _cached_name(array: NDArray[Any], part: int) -> str:
    return f"{part}-{digest_rows(array)}.npy"


def _cached_folder(kind: str, key: str) -> Path:
    return cache_folder() / kind / hashlib.sha256(key.encode()).hexdigest()[:16]
