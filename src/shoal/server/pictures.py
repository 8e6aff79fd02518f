"""The pictures of a run: thumbnails out of its archive, by the hundred, and originals out of its
collection.

An original is named by its row alone, lies inside the folder (or address, or shards) of the
collection, and leaves as pixels that were decoded and written anew: no other file, and nothing that
hides in one, is ever sent.
"""

import io
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from shoal.errors import DataError
from shoal.runs import Run
from shoal.text import shown

MAX_SIDE = 2048
"""Pixels of the longer side of an enlarged image."""

WHOLE_SIDE = 8192
"""The same of one that somebody zooms into, with all of its pixels where there are no more."""

SHARP_SIDES = (224, 640)
"""The same of an image that stands in the grid for a thumbnail that is too small: at least, at
most."""

QUALITY = 88

LOOKED_AT = 20
"""Images that are looked for at the start, to tell a folder that holds none of them."""

MOVED = "if they have moved, `shoal review --images FOLDER` says where they are now"
NO_FILES = (
    "the run was made from embeddings; `shoal review --images FOLDER` says where the images are "
    "that it names"
)


def packed(pictures: Sequence[bytes]) -> bytes:
    """Several pictures as one answer: how many, the bytes of each (little-endian u4), then all
    of them.
    """
    sizes = np.array([len(pictures), *map(len, pictures)], dtype="<u4").tobytes()
    return sizes + b"".join(pictures)


class Originals:
    """The image files of a run, where they still are, or in the folder `images` where they have
    moved to.
    """

    def __init__(self, run: Run, paths: Sequence[str], images: Path | None = None) -> None:
        self.paths = paths
        self._has_thumbnails = run.has_thumbnails
        self.get = lru_cache(maxsize=256)(self._get)
        self._zooming = threading.Lock()
        self.find: Callable[[str], str] | None = None
        """Finds images on a network or in shards."""
        self.root: Path | None = None
        root = str(images or run.provenance.get("root") or "")
        if root and not Path(root).is_dir():
            # Their readers take long to import; a folder needs none.
            from shoal.data.readers.originals import finder_of, is_stored

            self.find = finder_of(root) if is_stored(root) else None
        if root and self.find is None:
            self.root = Path(os.path.abspath(root))  # noqa: PTH100  (links may lead to the images)

    @property
    def is_there(self) -> bool:
        """Whether there is somewhere to look: a folder, or an address, which is not asked now."""
        return self.find is not None or (self.root is not None and self.root.is_dir())

    @property
    def missing(self) -> str:
        """Why no original can be shown.

        Empty where there is none, but a thumbnail of each: images in memory.
        """
        if self.find is not None:
            return ""
        if self.root is None:
            return "" if self._has_thumbnails else NO_FILES
        where = shown(str(self.root))
        if not self.is_there:
            return f"the folder of the images is not there ({where}); {MOVED}"
        some = self.paths[:: max(1, len(self.paths) // LOOKED_AT)]
        if some and not any((self.root / path).is_file() for path in some):
            return f"the images are not in {where}; {MOVED}"
        return ""

    def file(self, row: int) -> Path:
        """The file of a row, inside the folder of the collection."""
        if self.root is None:
            raise DataError("the run was not made from image files")
        file = Path(os.path.normpath(self.root / self.paths[row]))
        if not file.is_relative_to(self.root) or file == self.root:
            raise DataError("the path leads out of the collection")
        return file

    def whole(self, row: int) -> bytes:
        """An image with all of its pixels: one at a time, and kept by the browser alone, because
        of its size.
        """
        with self._zooming:
            return self._get(row, WHOLE_SIDE)

    def _get(self, row: int, side: int) -> bytes:
        """The image as a JPEG, upright, its longer side at most `side`."""
        from shoal.data.pixels.decoding import Unreadable, decode_whole

        try:
            where = str(self.file(row)) if self.find is None else self.find(self.paths[row])
            image = decode_whole(where, side)
        except Unreadable as error:
            raise DataError(f"the original cannot be shown: {error}") from error
        file = io.BytesIO()
        image.save(file, "JPEG", quality=QUALITY)
        return file.getvalue()
