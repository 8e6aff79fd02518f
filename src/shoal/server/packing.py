"""Rows in few bytes: a bit per image of the run instead of a long list of numbers.

Up to `MANY` rows stay a readable list. `packing.js` does the same on the page.
"""

import base64
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError

MANY = 1_000
"""Longer lists are packed."""


def pack_rows(rows: Ints, n_images: int) -> list[int] | str:
    """Return ascending rows as a list or, if many, as base64 of `n_images` bits, lowest first."""
    if len(rows) <= MANY:
        return [*map(int, rows)]
    is_in = np.zeros(n_images, bool)
    is_in[rows] = True
    return _text(np.packbits(is_in, bitorder="little"))


def unpack_rows(text: str, n_images: int) -> Ints:
    """Return the rows of a packed text, ascending."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError("images: found text, expected base64") from error
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-n_images // 8) or bits[n_images:].any():
        raise UsageError(
            f"images: found {len(data):,} bytes, expected a bit for each of {n_images:,} images"
        )
    return np.flatnonzero(bits)


def pack_numbers(values: Ints) -> list[int] | str | int:
    """Return a number per row as a list or, if many, as one number if all are equal, else as
    base64 of signed integers of 1, 2 or 4 bytes."""
    if len(values) <= MANY:
        return [*map(int, values)]
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return low
    size = np.min_scalar_type(min(low, -high - 1)).itemsize  # fits both ends
    return _text(values.astype(f"<i{size}"))


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
