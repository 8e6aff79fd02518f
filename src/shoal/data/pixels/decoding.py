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
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from shoal.boxes import split_file
from shoal.data.storage import Lost, is_stored, read_stored
from shoal.errors import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
HEIC_SUFFIXES = (".heic", ".heif")

# The reason of a HEIC file that cannot be read without the optional package
NO_HEIC = "HEIC needs the package 'pillow-heif', which is not installed; pip install pillow-heif"

# Largest number of decoded pixels (13,377 x 13,377), Pillow's limit for a decompression bomb.
#
# At 4 bytes each a decoder then takes about 0.7 GB, and twice that while it converts. JPEGs are
# decoded at a smaller scale if that is enough, and count at that scale unless they are progressive
# (those are decoded whole).
MAX_PIXELS = 178_956_970

ORIENTATION_TAG = 0x0112

MISSING = "the file does not exist"
REASONS: dict[type, str] = {
    UnidentifiedImageError: f"not an image in a known format ({', '.join(FORMATS)})",
    FileNotFoundError: MISSING,
    MemoryError: "decoding needs more memory than a worker may use",
}


class Unreadable(Exception):
    """An image that cannot be decoded; the message is the reason in skipped.csv."""


@contextmanager
def _explained() -> Iterator[None]:
    """Turn any error into `Unreadable`: a decoder may raise anything for a broken file."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:
        reason = REASONS.get(type(error)) or f"cannot be decoded: {one_line(error)}"
        if isinstance(error, Lost):
            reason = str(error)
        raise Unreadable(reason) from error


@_explained()
def decode_file(path: str, size: int, data: bytes | None = None) -> bytes:
    """Decode an image file or a box of one to size * size * 3 bytes, or raise `Unreadable`.

    `data` is the content of the file, if it was read already; it has no boxes.
    """
    return _square(_load(path, size, data), size).tobytes()


@_explained()
def decode_whole(path: str, longest: int) -> Image.Image:
    """Decode the image or box at a path or location as upright RGB, its longer side at most
    `longest`, or raise `Unreadable`."""
    data = read_stored(path) if is_stored(path) else None
    image = _load(path, longest, data)
    image.thumbnail((longest, longest), Image.Resampling.BICUBIC)
    return _flat_rgb(_upright(image))


@_explained()
def image_size(file: str) -> tuple[int, int]:
    """Return the width and height of a file's upright image by its header, or raise
    `Unreadable`."""
    with _open(file, None) as image:
        width, height = image.size
        orientation = None
        if image.format != "TIFF":  # Pillow turns TIFF files itself
            with suppress(Exception):
                orientation = image.getexif().get(ORIENTATION_TAG)
        if orientation in (5, 6, 7, 8):  # width and height are exchanged
            return height, width
        return width, height


def date_of(file: str) -> str:
    """Return when an image was taken by its EXIF data, or else when its file was modified, in local
    time as 'YYYY-MM-DD HH:MM:SS'; empty if there is no file."""
    with suppress(Exception), _open(file, None) as image:
        exif = image.getexif().get_ifd(ExifTags.IFD.Exif)
        return str(datetime.strptime(exif[ExifTags.Base.DateTimeOriginal], "%Y:%m:%d %H:%M:%S"))
    with suppress(OSError):
        return str(datetime.fromtimestamp(int(os.stat(file).st_mtime)))  # noqa: PTH116
    return ""


@_explained()
def fetch(path: str) -> bytes:
    """Read the bytes of an image on a network or in a shard, or raise `Unreadable`."""
    return read_stored(path)


@_explained()
def decode_image(image: "Image.Image | NDArray[np.uint8]", size: int) -> "NDArray[np.uint8]":
    """Decode an in-memory PIL image or uint8 array (H, W[, C]) to (size, size, 3), or raise
    `Unreadable`."""
    import numpy as np

    if isinstance(image, np.ndarray):
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[..., 0]
        image = Image.fromarray(image)
    return np.asarray(_square(_eight_bit(image), size))


def _load(path: str, size: int, data: bytes | None) -> Image.Image:
    """Return the pixels of an image or box as L, RGB or RGBA, still to be turned upright.

    A JPEG is decoded at about twice the wanted size, so that the antialiased resize still
    determines the result.
    """
    box = None
    if data is None:
        path, box = split_file(path)
    if box is not None:
        whole = _whole(path, os.stat(path).st_mtime_ns)  # noqa: PTH116
        left, top, right, bottom = box.corners
        if not (left < right <= whole.width and top < bottom <= whole.height):
            raise Unreadable(
                f"no such box in an image of {whole.width:,} x {whole.height:,} pixels"
            )
        return whole.crop(box.corners)
    with _open(path, data) as image:
        full_size = image.size
        image.draft(None, (2 * size, 2 * size))  # a no-op for all but JPEG
        _refuse_large(*(full_size if image.info.get("progressive") else image.size))
        return _eight_bit(image)


def _refuse_large(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Unreadable(
            f"too large: {width:,} x {height:,} pixels, the limit is {MAX_PIXELS:,} in all"
        )


@lru_cache(maxsize=1)  # the boxes of an image follow each other
def _whole(file: str, _modified: int) -> Image.Image:
    """Return the upright image of a file with all of its pixels, as L, RGB or RGBA."""
    with _open(file, None) as image:
        _refuse_large(*image.size)
        return _upright(_eight_bit(image))


def _open(path: str, data: bytes | None) -> Image.Image:
    source: str | io.BytesIO = path
    is_heic = path.lower().endswith(HEIC_SUFFIXES)
    if data is not None:
        source = io.BytesIO(data)
        is_heic = data[4:8] == b"ftyp"
    formats = FORMATS
    if is_heic:
        try:
            import pillow_heif
        except ImportError as error:
            raise Unreadable(NO_HEIC) from error
        pillow_heif.register_heif_opener()
        formats = (*FORMATS, "HEIF")
    return Image.open(source, formats=formats)


def _square(image: Image.Image, size: int) -> Image.Image:
    """Return the central square, resized to `size` (bicubic, antialiased), as upright RGB.

    Only the square is resampled, which gives the same pixels as resizing the image and cropping.
    """
    width, height = image.size
    side = min(width, height)
    if not side:
        raise Unreadable("the image is empty")
    left = (width - side) / 2
    top = (height - side) / 2
    box = (left, top, left + side, top + side)
    return _flat_rgb(_upright(image.resize((size, size), Image.Resampling.BICUBIC, box=box)))


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation, which is removed."""
    with suppress(Exception):  # a broken EXIF block does not make the image unreadable
        if image.getexif().get(ORIENTATION_TAG, 1) != 1:  # otherwise Pillow copies the image
            return ImageOps.exif_transpose(image)
    return image


def _flat_rgb(image: Image.Image) -> Image.Image:
    """Return the image as RGB, on a white background if it is transparent."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return the image as L, RGB or, if it is transparent, RGBA, with its EXIF block."""
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        deep = _from_deep(image)
        deep.info = image.info
        return deep
    if image.has_transparency_data:
        return image.convert("RGBA")
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
        shift = 4 if values.max() <= 4095 else 8
        return Image.fromarray((np.clip(values, 0, 65535) >> shift).astype(np.uint8))
    finite = np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)
    low = float(finite.min())
    high = float(finite.max())
    if low < 0 or high > 255:
        finite = (finite - low) * (255.0 / (high - low or 1.0))
    elif high <= 1:
        finite = finite * 255.0
    return Image.fromarray(np.rint(finite).astype(np.uint8))
