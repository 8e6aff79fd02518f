"""The pictures of a run: packed thumbnails, and originals from the collection.

An original is requested by row, must lie inside the folder (or address, or shards) of the
collection, and is decoded and encoded again: no other file, and nothing hidden in one, is sent.
"""

import io
import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from shoal.boxes import split_file, split_name
from shoal.errors import DataError
from shoal.runs import Run
from shoal.words import shown

# Maximum pixels of the longer side of an enlarged image
MAX_SIDE = 2048

# The same for an image that is zoomed into
WHOLE_SIDE = 8192

# Minimum and maximum pixels of an image that replaces a thumbnail that is too small
SHARP_SIDES = (224, 640)

QUALITY = 88


class Originals:
    """The image files of a run, in their collection or in the folder `images`."""

    def __init__(self, run: Run, paths: Sequence[str], images: Path | None = None) -> None:
        self.paths = paths
        self.get = lru_cache(maxsize=256)(self._get)
        self._zooming = threading.Lock()
        self.find: Callable[[str], str] | None = None
        """Finds images on a network or in shards."""
        self.root: Path | None = None
        root = str(images or run.provenance.get("root") or "")
        if root and not Path(root).is_dir():
            # Imported here, because the readers take long to import and a folder needs none.
            from shoal.data.readers.shards import is_stored_source, location_finder

            self.find = location_finder(root) if is_stored_source(root) else None
        if root and self.find is None:
            self.root = Path(os.path.abspath(root))  # noqa: PTH100  (keeps symbolic links)

    @property
    def missing(self) -> str:
        """Why originals cannot be shown; empty if there is their folder, or an address, which is
        not contacted."""
        if self.find is not None or (self.root is not None and self.root.is_dir()):
            return ""
        if self.root is None:
            return (
                "the run was not made from image files; give the folder of the images: "
                "`shoal review --images FOLDER`"
            )
        return (
            f"there is no folder {shown(str(self.root))}; if they were moved, give their folder: "
            "`shoal review --images FOLDER`"
        )

    def file(self, row: int) -> Path:
        """Return the file of a row; refuse one outside the folder of the collection."""
        if self.root is None:
            raise DataError("the run was not made from image files")
        file = Path(os.path.normpath(self.root / self.paths[row]))
        if not file.is_relative_to(self.root) or file == self.root:
            raise DataError("the path leads out of the collection")
        return file

    @cached_property
    def dates(self) -> list[str]:
        """(N,) when each image was taken, see `date_of`; empty for one that is not a local file."""
        return [self._date(row) for row in range(len(self.paths))]

    def _date(self, row: int) -> str:
        from shoal.data.pixels.decoding import date_of

        try:
            return date_of(split_file(str(self.file(row)))[0])
        except DataError:
            return ""

    def whole(self, row: int, *, is_around: bool) -> bytes:
        """Return an image with all of its pixels; one at a time and not cached, because it is
        large."""
        with self._zooming:
            return self._get(row, WHOLE_SIDE, is_around)

    def boxes(self, row: int) -> dict[str, object]:
        """Return the size of the image that a box is in, and its boxes, each with its row."""
        from shoal.data.pixels.decoding import Unreadable, image_size

        image, _ = split_name(self.paths[row])
        boxes = []
        for other, path in enumerate(self.paths):
            if path.startswith(image):
                file, box = split_name(path)
                if file == image and box:
                    boxes.append([other, *box])
        try:
            return {"size": image_size(split_file(str(self.file(row)))[0]), "boxes": boxes}
        except Unreadable as error:
            raise DataError(f"the original cannot be shown: {error}") from error

    def _get(self, row: int, side: int, is_around: bool = False) -> bytes:
        """Return an image as JPEG, upright, its longer side at most `side`; `is_around` asks for
        the image that a box is in."""
        from shoal.data.pixels.decoding import Unreadable, decode_whole

        try:
            source = str(self.file(row)) if self.find is None else self.find(self.paths[row])
            if is_around:
                source, _ = split_file(source)
            image = decode_whole(source, side)
        except Unreadable as error:
            raise DataError(f"the original cannot be shown: {error}") from error
        file = io.BytesIO()
        image.save(file, "JPEG", quality=QUALITY)
        return file.getvalue()
