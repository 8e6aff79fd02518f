"""Decoding: from an image, whatever its format, mode or orientation, to a square of RGB bytes.

Grayscale, palette, CMYK and 16-bit images become RGB; transparent ones are laid on white; of an
animation the first frame is taken; EXIF orientation is applied. Workers start by importing this:
numpy is imported where it is needed.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from shoal.data.storage.opening import is_stored, read_stored
from shoal.data.storage.remote import Lost, in_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
HEIC_SUFFIXES = (".heic", ".heif")

MAX_PIXELS = 178_956_970
"""Pixels that an image may have to be decoded whole (13,377 x 13,377); Pillow calls more a
decompression bomb.

A decoder then takes about 0.7 GB at 4 bytes each, and twice that while converting. JPEGs are
decoded at a smaller scale where that is enough, and count at that scale unless they are progressive
(those are held whole in any case).
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

WHITE = (255, 255, 255, 255)
BITS_12 = 4095

EMPTY = "the file is empty"


class Unreadable(Exception):
    """An image that cannot be decoded; the message is the reason, for skipped.csv."""


def decode_file(path: str, size: int, data: bytes | None = None) -> bytes:
    """Decode one image file to size * size * 3 bytes, or raise `Unreadable` with the reason.

    `data` is what the file holds, where that was read already.
    """
    with _explained(), _open(path, data) as image:
        _shrink(image, size)
        return square(image, size).tobytes()


def decode_whole(path: str, longest: int) -> Image.Image:
    """Decode one image, wherever it lies, as upright RGB, the longer side at most `longest`, or
    raise `Unreadable`."""
    data = None
    if is_stored(path):
        data = fetch(path)
    with _explained(), _open(path, data) as image:
        _shrink(image, longest)
        image.load()
        turn = _turn(image)
        small = _eight_bit(image)
        small.thumbnail((longest, longest), Image.Resampling.BICUBIC)
        return _upright(small, turn)


def check_header(path: str) -> None:
    """Raise `Unreadable` where a file is missing, empty or in no known format; decoding may find
    more."""
    # One that is so large is for decoding to judge.
    with _explained(), suppress(Image.DecompressionBombError):
        _open(path, None).close()


def fetch(path: str) -> bytes:
    """Read the bytes of an image that is no file on this machine, or raise `Unreadable`."""
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
    """Turn whatever goes wrong into `Unreadable`: a decoder may raise anything on a broken file."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from error


def _shrink(image: Image.Image, size: int) -> None:
    """Have a JPEG decoded at about twice the wanted size, and refuse an image that is too large.

    Twice the size is left, so that the antialiased resize still does the work that shows.
    """
    width, height = image.size
    image.draft(None, (2 * size, 2 * size))  # a no-op for all but JPEG
    if not image.info.get("progressive"):
        width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unreadable(
            f"too large: {width:,} x {height:,} pixels, the limit is {MAX_PIXELS:,} in all"
        )


def _open(path: str, data: bytes | None) -> Image.Image:
    """Open an image file, or what it holds, by its header."""
    if data is None:
        n_bytes = os.stat(path).st_size  # noqa: PTH116
        is_heic = path.lower().endswith(HEIC_SUFFIXES)
    else:
        n_bytes = len(data)
        is_heic = data[4:8] == b"ftyp"
    if n_bytes == 0:
        raise Unreadable(EMPTY)
    formats = _heic_formats() if is_heic else FORMATS
    return Image.open(path if data is None else io.BytesIO(data), formats=formats)


def _heic_formats() -> tuple[str, ...]:
    """The formats with that of phones, which needs an optional package."""
    try:
        import pillow_heif
    except ImportError as error:
        raise Unreadable(
            "HEIC needs the package 'pillow-heif', which is not installed; pip install pillow-heif"
        ) from error
    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def square(image: Image.Image, size: int) -> Image.Image:
    """Scale the shorter side to `size` (bicubic, antialiased) and keep the central square, as
    upright RGB.

    Only the central square is resampled: the same pixels as resizing the whole and cropping, for
    less work.
    """
    image.load()
    turn = _turn(image)  # after load: Pillow turns TIFF files itself and then forgets the tag
    image = _eight_bit(image)
    width, height = image.size
    side = min(width, height)
    left = (width - side) / 2
    top = (height - side) / 2
    box = (left, top, left + side, top + side)
    small = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return _upright(small, turn)


def _upright(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    """Turned as its EXIF says, on white where it is transparent, as RGB."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    if turn is not None:
        image = image.transpose(turn)
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image as L, RGB or, where anything is transparent, RGBA."""
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
    """Scale one deep channel to 8 bits.

    Integers count as 12-bit where none is above 4095 (cameras store 12 bits in 16), else as 16-bit.
    Floats count as 0..1 or 0..255 where they fit, else their own range is stretched.
    """
    import numpy as np

    values = np.asarray(image)
    if values.dtype.kind in "iu":
        shift = 4 if values.max() <= BITS_12 else 8
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
    except Exception:  # broken EXIF is no reason to lose the image
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not an image in a known format ({', '.join(FORMATS)})"
    if isinstance(error, Lost):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "the file is not there"
    if isinstance(error, MemoryError):
        return "decoding needs more memory than a worker may take"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: {error}"
    return f"cannot be decoded: {in_words(error)}"
