"""Where the images and labels of `discover` and `compare` are, as a user says it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.data.readers.folders import SHARD_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage.addresses import as_address


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSource:
    """The arguments of `discover` and `compare` that say how images are read."""

    images: Any = None
    labels: Any = None
    labeled: str | os.PathLike[str] | None = None
    unlabeled: str | os.PathLike[str] | None = None
    path_column: str | None = None
    label_column: str | None = None
    allow_missing: bool = False

    @property
    def is_given(self) -> bool:
        """Whether anything is said of images or labels."""
        said = (self.images, self.labels, self.labeled, self.unlabeled)
        return any(one is not None for one in said)

    def read(self) -> Collection:
        """Read the collection."""
        return read_collection(
            self.images,
            self.labels,
            labeled=self.labeled,
            unlabeled=self.unlabeled,
            path_column=self.path_column,
            label_column=self.label_column,
            allow_missing=self.allow_missing,
        )

    @property
    def default_folder(self) -> Path:
        """The default run folder: runs/<name of the folder or file>, runs/images for images in
        memory."""
        images = self.unlabeled if self.images is None else self.images
        if not isinstance(images, str | os.PathLike):
            return Path("runs") / "images"
        address = as_address(images)
        if address is None:
            path = Path(images).resolve()
            name = path.name if path.is_dir() else path.stem
        elif address.suffix in (*SHARD_SUFFIXES, *TABLE_SUFFIXES):
            name = address.stem
        else:
            name = address.name
        name = re.sub(r"[-_.]?(\{[^}]*\}|\*)", "", name)  # of several shards
        return Path("runs") / (name or "images")
