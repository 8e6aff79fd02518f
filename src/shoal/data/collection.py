"""A collection: images under unique names, some of them labeled.

Hidden truth never lives here: an image without a label carries -1, whatever the caller knows about
it. Evaluators and the demo keep what they know in a separate `Truth`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Bools, Ints, as_labels
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError
from shoal.text import shown
from shoal.words import count

MIN_KNOWN_CLASSES = 2
"""Known classes that discovery needs: with one, no labeled pair is ever apart, and no K is
better than another."""


class Images(Protocol):
    """Images in memory: PIL images or arrays, or one array of them all."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class PreviousCategories:
    """What an earlier run, as people corrected it, says of the images: the categories there were,
    and cannot-links.

    Images go by name, categories by id. Labels that people gave are labels like any other, in the
    collection itself.
    """

    class_ids: tuple[int, ...]
    """The id of each known class of the collection."""
    names: Mapping[int, str]
    """What the categories are called, the known classes too."""
    categories: Mapping[str, int]
    """The category that each image was in, where it was in one."""
    apart: Mapping[str, frozenset[int]]
    """Cannot-links: the categories that an image was thrown out of."""
    next_id: int
    """From here on ids are free."""
    taken: frozenset[str]
    """Names that no new category may have: those of categories that have ended, too."""

    @property
    def checksum(self) -> str:
        """A checksum of all of it."""
        apart = {name: sorted(ids) for name, ids in self.apart.items()}
        parts = (
            self.class_ids,
            self.names,
            self.categories,
            apart,
            self.next_id,
            sorted(self.taken),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Collection:
    """N images under unique names, sorted, so that the order in which files were found never
    matters.

    An image is a file of a local folder (`root / name`), lies in a bucket or a shard (`stored`), or
    is an array or PIL image in memory (`images[i]`).
    """

    names: tuple[str, ...]
    """Unique and sorted; for files the path relative to `root`, with forward slashes."""
    labels: Ints
    """(N,) position in `classes`, -1 for unlabeled."""
    classes: tuple[str, ...]
    """Names of the known classes, untouched; by name unless the caller gave an order."""
    root: Path | None = None
    """The local folder that holds the files; None when there is none."""
    images: Images | None = None
    """In-memory images in the order of `names`; None when they are files."""
    stored: StoredFiles | None = None
    """Where the images lie, in the order of `names`, when that is on a network or in shards."""
    layout: str = "images"
    """How the images and labels were found, in words."""
    notes: tuple[str, ...] = ()
    """Counted warnings, a sentence each: what was ignored, doubled or not found."""
    folders: tuple[str, ...] = ()
    """The folders below `root` in which every image is one of the collection; none where images
    were listed."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Files named like images that are none to begin with: dead links, pipes, undecodable names;
    and why."""
    earlier: PreviousCategories | None = None
    """What an earlier run of these images and its review say of their categories, where there is
    one."""

    def __post_init__(self) -> None:
        labels = as_labels(self.labels, len(self.names), name="labels").copy()
        assert len(labels), "at least one image"
        sources = [one for one in (self.root, self.images, self.stored) if one is not None]
        assert len(sources) == 1, "files, stored or in-memory images"
        images = self.images if self.stored is None else self.stored.states
        assert images is None or len(images) == len(labels), "an image per name"
        assert all(map(str.__lt__, self.names, self.names[1:])), "names are unique and sorted"
        assert len(set(self.classes)) == len(self.classes) > labels.max(), "a name per class"
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def is_labeled(self) -> Bools:
        """(N,) which images carry a label."""
        mask: Bools = self.labels != UNLABELED
        return mask

    @property
    def n_labeled(self) -> int:
        """How many images carry a label."""
        return int(self.is_labeled.sum())

    @property
    def n_classes(self) -> int:
        """How many classes are known."""
        return len(self.classes)

    @cached_property
    def class_sizes(self) -> Ints:
        """(C,) labeled images of each known class."""
        return np.bincount(self.labels[self.is_labeled], minlength=self.n_classes)

    @property
    def where(self) -> str:
        """Where the images lie: the local folder, an address, or the shards; empty when they are
        in memory."""
        if self.stored is not None:
            return self.stored.where
        return str(self.root or "")

    def source(self, i: int) -> Any:
        """Where image `i` comes from: a `Path`, what `read_stored` takes, or the array or PIL
        image itself."""
        if self.stored is not None:
            return self.stored.address(i, self.names[i])
        if self.root is not None:
            return self.root / self.names[i]
        assert self.images is not None
        return self.images[i]

    def subset(self, index: ArrayLike) -> "Collection":
        """The images at `index` (increasing positions, or N booleans); classes keep their ids,
        even if none is left."""
        chosen = np.asarray(index)
        if chosen.dtype == bool and chosen.shape == (len(self),):
            chosen = np.flatnonzero(chosen)
        if not len(chosen):
            raise DataError("none of the wanted images is in the collection")
        assert (np.diff(chosen, prepend=-1) > 0).all(), "increasing positions"
        images = self.images
        if isinstance(images, np.ndarray):
            images = images[chosen]
        elif images is not None:
            images = tuple(images[i] for i in chosen)
        stored = self.stored
        if stored is not None:
            stored = stored.take(chosen)
        names = tuple(self.names[i] for i in chosen)
        return replace(self, names=names, labels=self.labels[chosen], images=images, stored=stored)

    def count(self, *, n_unreadable: int = 0) -> str:
        """Say how many images there are: '12,431 images, 1,830 labeled in 14 categories, 10,601
        unlabeled'.

        `n_unreadable` are others, that could not be read; they are said last, with those that were
        left out.
        """
        n_unreadable += len(self.left_out)
        labeled = "none labeled"
        if self.n_labeled:
            labeled = f"{self.n_labeled:,} labeled in {count(self.n_classes, 'category')}"
        counts = [count(len(self), "image"), labeled, f"{len(self) - self.n_labeled:,} unlabeled"]
        if n_unreadable:
            counts.append(f"{n_unreadable:,} unreadable")
        return ", ".join(counts)

    def describe(self, *, n_unreadable: int = 0) -> str:
        """Say in words what was found: the counts, how it was read, then one line per counted
        warning."""
        lines = [self.count(n_unreadable=n_unreadable), f"read as {shown(self.layout)}"]
        lines += [f"note: {shown(note)}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Truth:
    """The true class of every image, for those who score. Nothing that chooses may receive it."""

    names: tuple[str, ...]
    labels: Ints
    """(N,) position in `classes`; none is -1."""
    classes: tuple[str, ...]
    """All classes, the known ones first."""
    n_known: int
    """How many of them are known."""

    def __post_init__(self) -> None:
        labels = as_labels(self.labels, len(self.names), name="truth").copy()
        assert 0 <= labels.min() <= labels.max() < len(self.classes), "a true class per image"
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    @property
    def is_known(self) -> Bools:
        """(N,) which images truly belong to a known class."""
        return self.labels < self.n_known


def check_for_discovery(collection: Collection, *, min_images: int = 10) -> None:
    """Refuse a collection on which discovery cannot work, with what it needs.

    Needed are labeled images of at least two classes, at least one unlabeled image, and
    `min_images` images in all (one more than the neighbors that mean shift averages).
    """
    where = collection.count()
    if len(collection) < min_images:
        raise DataError(
            f"{where}: discovery needs at least {min_images} images; add "
            f"{min_images - len(collection)}"
        )
    n_known = int((collection.class_sizes > 0).sum())
    if n_known < MIN_KNOWN_CLASSES:
        raise DataError(
            f"{where}: discovery needs labeled images of at least {MIN_KNOWN_CLASSES} categories, "
            f"found {n_known}; "
            f"label a few images of {'another one' if n_known else 'two'}, check which column or "
            "folders hold the "
            "labels, or say in one number how many categories there are, with --n-clusters "
            "(n_clusters in Python)"
        )
    if collection.n_labeled == len(collection):
        raise DataError(
            f"{where}: every image is labeled, so nothing is left to discover; add unlabeled images"
        )
