"""Thumbnails: a small picture of every image, so that a report needs nothing but the run folder."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from shoal.data.pixels import Pixels, available_cpus

SIDE = 64
"""Pixels along a side of a thumbnail."""

QUALITY = 80

EFFORT = 2
"""How hard WebP looks for a smaller file, from 0 to 6: at this size 4 takes twice as long and saves 2 %."""

N_AT_ONCE = 1024
"""Images handed to the threads at once."""


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """The images as small WebP files, in their order; pictures smaller than a thumbnail keep their size."""

    def make(row: int) -> bytes:
        image = Image.fromarray(pixels[row])
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=QUALITY, method=EFFORT)
        return file.getvalue()

    with ThreadPoolExecutor(
        available_cpus()
    ) as threads:  # Pillow lets go of the interpreter while it scales and writes
        for start in range(0, len(pixels), N_AT_ONCE):
            yield from threads.map(make, range(start, min(start + N_AT_ONCE, len(pixels))))
