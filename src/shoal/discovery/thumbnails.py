"""Thumbnails of decoded images, so that a report needs only the run folder."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from shoal.data.pixels.loading import Pixels
from shoal.data.pixels.workers import available_cpus

THUMBNAIL_SIDE = 64
"""Pixels along the longer side."""

WEBP_EFFORT = 2
"""From 0 to 6; 4 takes twice as long and saves 2 %."""

BATCH_IMAGES = 1024
"""Images given to the threads at a time, so that few results wait in memory."""


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """Yield each image as a small WebP file, in order; smaller pictures are not enlarged."""

    def make(row: int) -> bytes:
        image = Image.fromarray(pixels[row])
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=80, method=WEBP_EFFORT)
        return file.getvalue()

    # Threads are enough: Pillow releases the GIL while it resizes and encodes.
    with ThreadPoolExecutor(available_cpus()) as threads:
        for start in range(0, len(pixels), BATCH_IMAGES):
            yield from threads.map(make, range(start, min(start + BATCH_IMAGES, len(pixels))))
