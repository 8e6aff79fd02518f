"""Many images in few bytes: a bit for each image of the run instead of a number for each of a long
list.

A list of up to `MANY` stays a list of numbers, which a person can read; the page has the same in
`packing.js`.
"""

import base64
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError

MANY = 1_000
"""Images from which on they are packed."""


def pack_rows(rows: Ints, n_images: int) -> list[int] | str:
    """Ascending rows as they are, or, where they are many, as the base64 text of `n_images`
    bits, the lowest first.
    """
    if len(rows) <= MANY:
        return [*map(int, rows)]
    is_in = np.zeros(n_images, bool)
    is_in[rows] = True
    return _text(np.packbits(is_in, bitorder="little"))


def unpack_rows(text: str, n_images: int) -> Ints:
    """The rows of such a text, ascending."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError("rows: found a text, expected base64") from error
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-n_images // 8) or bits[n_images:].any():
        raise UsageError(
            f"rows: found {len(data):,} bytes, expected a bit for each of {n_images:,} images"
        )
    return np.flatnonzero(bits)


def pack_numbers(values: Ints) -> list[int] | str | int:
    """A number for each of some rows, packed where these are: as one where all are equal,
    otherwise as the base64 text of signed numbers of 1, 2 or 4 bytes.
    """
    if len(values) <= MANY:
        return [*map(int, values)]
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return low
    size = np.min_scalar_type(min(low, -high - 1)).itemsize  # signed, for either end
    return _text(values.astype(f"<i{size}"))


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
