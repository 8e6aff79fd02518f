"""Decode images of any format, mode and orientation to squares of RGB bytes.

Grayscale, palette, CMYK and 16-bit images become RGB; transparent ones get a white background; the
first frame of an animation is used; EXIF orientation is applied. A path may name a box of an image
(see `shoal.boxes`), which is cut out of the upright image before anything is scaled. Workers import
this module, so numpy is imported only in the functions that need it.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from shoal.boxes import Box, split_file
from shoal.data.storage.opening import is_stored, read_stored
from shoal.data.storage.remote import Lost
from shoal.text import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
HEIC_SUFFIXES = (".heic", ".heif")
NO_HEIC = "HEIC needs the package 'pillow-heif', which is not installed; pip install pillow-heif"
"""The reason of a HEIC file that cannot be read without the optional package."""

MAX_PIXELS = 178_956_970
"""Largest number of decoded pixels (13,377 x 13,377), Pillow's limit for a decompression bomb.

At 4 bytes each a decoder then takes about 0.7 GB, and twice that while it converts. JPEGs are
decoded at a smaller scale if that is enough, and count at that scale unless they are progressive
(those are decoded whole).
"""

ORIENTATION_TAG = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
"""Turns that exchange width and height."""

WHITE = (255, 255, 255, 255)
BITS_12 = 4095

EMPTY = "the file is empty"
MISSING = "the file does not exist"


class Unreadable(Exception):
    """An image that cannot be decoded; the message is the reason in skipped.csv."""


def decode_file(path: str, size: int, data: bytes | None = None) -> bytes:
    """Decode an image file or a box of one to size * size * 3 bytes, or raise `Unreadable`.

    `data` is the content of the file, if it was read already; it has no boxes.
    """
    box = None
    if data is None:
        path, box = split_file(path)
    if box is not None:
        return _flat_rgb(_central_square(_cut(path, box), size)).tobytes()
    with _explained(), _open(path, data) as image:
        _shrink(image, size)
        return square(image, size).tobytes()


def decode_whole(path: str, longest: int) -> Image.Image:
    """Decode the image or box at a path or location as upright RGB, its longer side at most
    `longest`, or raise `Unreadable`."""
    data = None
    box = None
    if is_stored(path):
        data = fetch(path)
    else:
        path, box = split_file(path)
    if box is not None:
        crop = _cut(path, box)
        crop.thumbnail((longest, longest), Image.Resampling.BICUBIC)
        return _flat_rgb(crop)
    with _explained(), _open(path, data) as image:
        _shrink(image, longest)
        image.load()
        turn = _turn(image)
        small = _eight_bit(image)
        small.thumbnail((longest, longest), Image.Resampling.BICUBIC)
        return _turned(_flat_rgb(small), turn)


def image_size(file: str) -> tuple[int, int]:
    """Return the width and height of a file's upright image by its header, or raise
    `Unreadable`."""
    with _explained(), _open(file, None) as image:
        width, height = image.size
        if image.format != "TIFF" and _turn(image) in SIDEWAYS:  # Pillow turns TIFF files itself
            width, height = height, width
        return width, height


def check_header(path: str) -> None:
    """Raise `Unreadable` if a file is missing, empty or of unknown format."""
    # Decoding checks the size: a large JPEG may be decoded at a smaller scale.
    with _explained(), suppress(Image.DecompressionBombError):
        _open(split_file(path)[0], None).close()


def fetch(path: str) -> bytes:
    """Read the bytes of an image on a network or in a shard, or raise `Unreadable`."""
    with _explained():
        return read_stored(path)


def decode_image(image: "Image.Image | NDArray[np.uint8]", size: int) -> "NDArray[np.uint8]":
    """Decode an in-memory PIL image or uint8 array (H, W[, C]) to (size, size, 3), or raise
    `Unreadable`."""
    import numpy as np

    with _explained():
        if isinstance(image, np.ndarray):
            if image.ndim == 3 and image.shape[2] == 1:
                image = image[..., 0]
            image = Image.fromarray(image)
        return np.asarray(square(image, size))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn any error into `Unreadable`: a decoder may raise anything for a broken file."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from error


def _shrink(image: Image.Image, size: int) -> None:
    """Have a JPEG decoded at about twice the wanted size, and refuse an image that is too large.

    Twice the size, so that the antialiased resize still determines the result.
    """
    width, height = image.size
    image.draft(None, (2 * size, 2 * size))  # a no-op for all but JPEG
    if not image.info.get("progressive"):
        width, height = image.size
    _refuse_large(width, height)


def _refuse_large(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Unreadable(
            f"too large: {width:,} x {height:,} pixels, the limit is {MAX_PIXELS:,} in all"
        )


def _cut(file: str, box: Box) -> Image.Image:
    """Return the pixels of a box as L, RGB or RGBA, or raise `Unreadable`."""
    with _explained():
        whole = _whole(file, os.stat(file).st_mtime_ns)  # noqa: PTH116
        left, top, right, bottom = box.corners
        if not (left < right <= whole.width and top < bottom <= whole.height):
            raise Unreadable(
                f"no such box in an image of {whole.width:,} x {whole.height:,} pixels"
            )
        return whole.crop((left, top, right, bottom))


@lru_cache(maxsize=1)  # the boxes of an image follow each other
def _whole(file: str, _modified: int) -> Image.Image:
    """Return the upright image of a file with all of its pixels, as L, RGB or RGBA."""
    with _open(file, None) as image:
        _refuse_large(*image.size)
        image.load()
        return _turned(_eight_bit(image), _turn(image))


def _open(path: str, data: bytes | None) -> Image.Image:
    """Open an image file, or its content, by its header."""
    if data is None:
        n_bytes = os.stat(path).st_size  # noqa: PTH116
        is_heic = path.lower().endswith(HEIC_SUFFIXES)
    else:
        n_bytes = len(data)
        is_heic = data[4:8] == b"ftyp"
    if n_bytes == 0:
        raise Unreadable(EMPTY)
    formats = FORMATS
    if is_heic:
        formats = _heic_formats()
    source: str | io.BytesIO = path
    if data is not None:
        source = io.BytesIO(data)
    return Image.open(source, formats=formats)


def _heic_formats() -> tuple[str, ...]:
    """Return the formats including HEIC, which needs an optional package."""
    try:
        import pillow_heif
    except ImportError as error:
        raise Unreadable(NO_HEIC) from error
    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def square(image: Image.Image, size: int) -> Image.Image:
    """Return the central square, resized to `size` (bicubic, antialiased), as upright RGB.

    Only the square is resampled, which gives the same pixels as resizing the image and cropping.
    """
    image.load()
    turn = _turn(image)  # after load: Pillow turns TIFF files itself and then forgets the tag
    return _turned(_flat_rgb(_central_square(_eight_bit(image), size)), turn)


def _central_square(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left = (width - side) / 2
    top = (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def _turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    if turn is None:
        return image
    return image.transpose(turn)


def _flat_rgb(image: Image.Image) -> Image.Image:
    """Return the image as RGB, on a white background if it is transparent."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return the image as L, RGB or, if it is transparent, RGBA."""
    if image.mode.startswith("I") or image.mode == "F":
        return _from_deep(image)
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    if image.mode not in ("L", "RGB"):
        return image.convert("RGB")
    return image


def _from_deep(image: Image.Image) -> Image.Image:
    """Return one deep channel scaled to 8 bits.

    Integers are 12-bit if none is above 4095 (cameras store 12 bits in 16), else 16-bit. Floats are
    in 0..1 or 0..255 if they fit, else their range is stretched.
    """
    import numpy as np

    values = np.asarray(image)
    if values.dtype.kind in "iu":
        shift = 8
        if values.max() <= BITS_12:
            shift = 4
        deep = np.clip(values, 0, 65535).astype(np.uint16)
        return Image.fromarray(np.right_shift(deep, shift).astype(np.uint8))
    finite = np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)
    low = float(finite.min())
    high = float(finite.max())
    if low >= 0 and high <= 255:
        scaled = finite
        if high <= 1:
            scaled = finite * 255.0
    else:
        scaled = (finite - low) * (255.0 / (high - low or 1.0))
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return TURNS.get(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # a broken EXIF block does not make the image unreadable
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not an image in a known format ({', '.join(FORMATS)})"
    if isinstance(error, Lost):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return MISSING
    if isinstance(error, MemoryError):
        return "decoding needs more memory than a worker may use"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: {error}"
    return f"cannot be decoded: {one_line(error)}"
