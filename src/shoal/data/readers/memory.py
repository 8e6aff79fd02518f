"""What a Python caller already holds: PIL images and arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shoal.data.collection import Images
from shoal.errors import DataError


def read_images(source: Sequence[object] | NDArray[np.uint8]) -> tuple[Images, str]:
    """Check in-memory images: a uint8 array (N, H, W[, C]), or a list of PIL images or such
    arrays (H, W[, C])."""
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
                f"image {i}: found {type(image).__name__}, expected a PIL image or a uint8 array "
                "like the rest"
            )
    return tuple(source), "a list of images in memory"


def _check_array(array: NDArray[np.uint8], where: str, *, n_leading: int) -> None:
    shape = array.shape[n_leading:]
    if array.dtype != np.uint8:
        raise DataError(
            f"{where}: found dtype {array.dtype}, expected uint8 pixels from 0 to 255; convert them"
        )
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)) or 0 in shape:
        raise DataError(
            f"{where}: found shape {array.shape}, expected "
            f"{'(N, H, W[, C])' if n_leading else '(H, W[, C])'} "
            "with C = 1, 3 or 4; transpose it"
        )
