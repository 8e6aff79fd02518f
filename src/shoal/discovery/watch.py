"""A folder that is watched: images that arrive are put into the categories of a run, each once."""

import os
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection
from shoal.data.pixels import Skipped
from shoal.data.pixels.store import file_state
from shoal.data.readers.folders import check_folder, list_folder
from shoal.data.readers.remote_folders import list_remote_folder
from shoal.data.storage.addresses import as_address
from shoal.data.storage.stored import StoredFiles
from shoal.discovery.assign import Assigner
from shoal.errors import DataError
from shoal.runs import Assignment


class Watch:
    """A folder, here or in a bucket, and what was seen in it; the run's model is loaded once and serves every look."""

    def __init__(self, assigner: Assigner, folder: str | os.PathLike[str]) -> None:
        self.assigner, self.address = assigner, as_address(folder)
        self.root = check_folder(folder) if self.address is None else None
        self._seen: dict[str, str] = {}
        self._done: dict[str, str] = {}

    def poll(self) -> tuple[list[Assignment], tuple[Skipped, ...]]:
        """Assign the images that came or changed; a row per readable one, and those that are not.

        A file counts as complete when two looks in a row find it the same, so that none is read while it is written.
        """
        states, stored = self._look()
        ready = [name for name, state in states.items() if self._seen.get(name) == state != self._done.get(name)]
        self._seen = states
        if not ready:
            return [], ()
        self._done |= {name: states[name] for name in ready}
        wanted = set(ready)
        chosen = np.array([i for i, name in enumerate(states) if name in wanted])
        where: dict[str, Any] = {"root": self.root, "stored": None if stored is None else stored.take(chosen)}
        collection = Collection(tuple(sorted(ready)), np.full(len(ready), UNLABELED), (), **where)
        try:
            return self.assigner.assign_images(collection)
        except DataError as error:  # none of them can be decoded; the next ones may
            return [], tuple(Skipped(name, str(error)) for name in collection.names)

    def _look(self) -> tuple[dict[str, str], StoredFiles | None]:
        """The state of every image by name, sorted, and where they lie if that is no local folder."""
        if self.address is not None:
            found = list_remote_folder(self.address)
            return dict(zip(found.listing.names, found.files.states if found.files else (), strict=True)), found.files
        names = list_folder(self.root).names if self.root is not None else ()
        there = {name: file_state(f"{self.root}/{name}") for name in names}
        return {name: state for name, state in there.items() if state is not None}, None  # some are gone since
