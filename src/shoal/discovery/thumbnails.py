"""Thumbnails: a small picture of every image, so that a report needs nothing but the run folder."""

import io
from collections.abc import Iterator

from PIL import Image

from shoal.data.pixels import Pixels

SIDE = 64
"""Pixels along a side of a thumbnail."""

QUALITY = 80


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """The images as small WebP files, in their order; pictures smaller than a thumbnail keep their size."""
    for row in range(len(pixels)):
        image = Image.fromarray(pixels[row])
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=QUALITY)
        yield file.getvalue()
