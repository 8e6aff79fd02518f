"""A folder that is watched: images that arrive are put into the categories of a run, each once."""

import os
from pathlib import Path

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection
from shoal.data.pixels import Skipped
from shoal.data.readers.folders import check_folder, list_folder
from shoal.discovery.assign import Assigner
from shoal.errors import DataError
from shoal.runs import Assignment

Mark = tuple[int, int]
"""Size and time of a file: when either changes, it is another image."""


class Watch:
    """A folder and what was seen in it; the run's model is loaded once and serves every look."""

    def __init__(self, assigner: Assigner, folder: str | os.PathLike[str]) -> None:
        self.assigner, self.root = assigner, check_folder(folder)
        self._seen: dict[str, Mark] = {}
        self._done: dict[str, Mark] = {}

    def poll(self) -> tuple[list[Assignment], tuple[Skipped, ...]]:
        """Assign the images that came or changed; a row per readable one, and those that are not.

        A file counts as complete when two looks in a row find it the same, so that none is read while it is written.
        """
        marks = {name: mark for name in list_folder(self.root).names if (mark := _mark(self.root / name)) is not None}
        ready = [name for name, mark in marks.items() if self._seen.get(name) == mark != self._done.get(name)]
        self._seen = marks
        if not ready:
            return [], ()
        self._done |= {name: marks[name] for name in ready}
        collection = Collection(tuple(sorted(ready)), np.full(len(ready), UNLABELED), (), root=self.root)
        try:
            return self.assigner.assign_images(collection)
        except DataError as error:  # none of them can be decoded; the next ones may
            return [], tuple(Skipped(name, str(error)) for name in collection.names)


def _mark(file: Path) -> Mark | None:
    try:
        found = file.stat()
    except OSError:  # gone since it was listed
        return None
    return found.st_size, found.st_mtime_ns
