"""A collection: images under unique names, some of them labeled; and its validation images.

It never holds hidden labels: an unlabeled image has the label -1.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Bools, Ints, as_labels
from shoal.boxes import split_file
from shoal.errors import DataError, count, shown

# Images that discovery needs; mean shift averages 8 neighbors by default
MIN_IMAGES = 10

# Known classes that discovery needs: with one, labels cannot tell one K from another
MIN_KNOWN_CLASSES = 2


@dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """N images in the order of the collection's names: files below an address, or parts of
    shards."""

    # The address, or the pattern of the shards
    where: str
    # (N,) location of each image, in the form that `read_stored` expects
    locations: tuple[str, ...]
    # (N,) a key of each image that changes whenever the image or its shard does
    states: tuple[str, ...]
    # (N,) rank of each image by its place in the shards: the order in which to read them
    order: Ints

    @classmethod
    def of_states(cls, where: str, states: Mapping[str, str]) -> "StoredFiles":
        return cls(
            where=where,
            locations=tuple(f"{where.removesuffix('/')}/{name}" for name in states),
            states=tuple(states.values()),
            order=np.arange(len(states)),
        )

    def take(self, index: Ints) -> "StoredFiles":
        return replace(
            self,
            locations=tuple(self.locations[i] for i in index),
            states=tuple(self.states[i] for i in index),
            order=self.order[index],
        )


@dataclass(frozen=True, kw_only=True)
class PreviousCategories:
    """Categories and cannot-links of an earlier run and its review.

    Images are identified by name, categories by id. Labels that reviewers gave are labels of the
    collection.
    """

    # The category id of each known class
    class_ids: tuple[int, ...]
    # Names of the categories by id, including known classes
    names: Mapping[int, str]
    # The category of each image that was in one
    categories: Mapping[str, int]
    # Categories that each image was rejected from
    cannot_links: Mapping[str, frozenset[int]]
    next_id: int
    # Names that no new category may get, including those of former categories
    reserved_names: frozenset[str]

    @property
    def checksum(self) -> str:
        parts = json.dumps(list(vars(self).values()), sort_keys=True, default=sorted)
        return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(frozen=True)
class Collection:
    """N images under unique, sorted names, so that the order of files does not matter.

    An image is a file of a local folder (`root / name`), is in a bucket or a shard (`stored`), or
    is an array or PIL image in memory (`images[i]`).
    """

    # Unique and sorted; for files the path relative to `root` with forward slashes, and for a box
    # in a file its position too (see `shoal.boxes`)
    names: tuple[str, ...]
    labels: Ints  # (N,) position in `classes`, -1 for unlabeled
    # Names of the known classes, sorted unless the caller gave an order
    classes: tuple[str, ...]
    root: Path | None = None
    # PIL images or arrays in memory in the order of `names`, or None; or one array of all
    images: Any = None
    # Locations of images on a network or in shards in the order of `names`, or None
    stored: StoredFiles | None = None
    # How images and labels were found, for messages
    layout: str = "images"
    # Warnings with counts: what was ignored, repeated or missing
    notes: tuple[str, ...] = ()
    # The folders below `root` whose images are all in the collection; empty if images were listed
    # one by one
    folders: tuple[str, ...] = ()
    # Names of files that cannot be read (broken links, pipes, undecodable names), and why
    left_out: Mapping[str, str] = field(default_factory=dict)
    # Categories of an earlier run of these images and its review, or None
    previous: PreviousCategories | None = None

    def __post_init__(self) -> None:
        labels = as_labels(self.labels, len(self.names), name="labels").copy()
        sources = [part for part in (self.root, self.images, self.stored) if part is not None]
        assert len(sources) == 1, "files, stored or in-memory images"
        assert all(map(str.__lt__, self.names, self.names[1:])), "names are unique and sorted"
        assert len(set(self.classes)) == len(self.classes) > labels.max(), "a name per class"
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def is_labeled(self) -> Bools:
        return self.labels != UNLABELED

    @property
    def n_labeled(self) -> int:
        return int(self.is_labeled.sum())

    @cached_property
    def class_sizes(self) -> Ints:
        """(C,) number of labeled images of each known class."""
        return np.bincount(self.labels[self.is_labeled], minlength=len(self.classes))

    @property
    def where(self) -> str:
        """The local folder, address or shards of the images; empty if they are in memory."""
        if self.stored is not None:
            return self.stored.where
        return str(self.root or "")

    def source(self, i: int) -> Any:
        """Return the `Path` or location of image `i`, or the array or PIL image itself.

        A box has the `Path` of its image.
        """
        if self.stored is not None:
            return self.stored.locations[i]
        if self.root is not None:
            return Path(split_file(f"{self.root}/{self.names[i]}")[0])
        return self.images[i]

    def subset(self, index: ArrayLike) -> "Collection":
        """Return the images at `index` (increasing positions, or N booleans); classes keep their
        ids."""
        chosen = np.asarray(index)
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        if not len(chosen):
            raise DataError("none of the requested images is in the collection")
        assert (np.diff(chosen, prepend=-1) > 0).all(), "increasing positions"
        images = self.images
        if images is not None:
            images = tuple(images[i] for i in chosen)
        return replace(
            self,
            names=tuple(self.names[i] for i in chosen),
            labels=self.labels[chosen],
            images=images,
            stored=self.stored and self.stored.take(chosen),
        )

    def count(self, *, n_unreadable: int = 0) -> str:
        """Return counts: '12,431 images, 1,830 labeled in 14 categories, 10,601 unlabeled'.

        `n_unreadable` images that are not in the collection are reported too, with `left_out`.
        """
        n_unreadable += len(self.left_out)
        counts = f"{count(len(self), 'image')}, {count_labeled(self.labels, self.classes)}"
        if n_unreadable:
            counts += f", {n_unreadable:,} unreadable"
        return counts

    def describe(self) -> str:
        """Return counts, the layout, then one line per note."""
        lines = [self.count(), f"read as {shown(self.layout)}"]
        lines += [f"note: {shown(note)}" for note in self.notes]
        return "\n".join(lines)


def count_labeled(labels: Ints, classes: Sequence[str]) -> str:
    """Return counts of labels: '1,830 labeled in 14 categories, 10,601 unlabeled'."""
    n_labeled = int((labels != UNLABELED).sum())
    labeled = "none labeled"
    if n_labeled:
        labeled = f"{n_labeled:,} labeled in {count(len(classes), 'category')}"
    return f"{labeled}, {len(labels) - n_labeled:,} unlabeled"


def check_for_discovery(collection: Collection) -> None:
    """Refuse a collection on which discovery cannot work.

    It needs labeled images of at least two classes, at least one unlabeled image, and `MIN_IMAGES`
    images in all.
    """
    n_known = int((collection.class_sizes > 0).sum())
    is_all_labeled = collection.n_labeled == len(collection)
    if len(collection) < MIN_IMAGES or n_known < MIN_KNOWN_CLASSES or is_all_labeled:
        raise DataError(
            f"{collection.count()}, read as {collection.layout}: discovery needs at least "
            f"{MIN_IMAGES} images, labeled images of at least {MIN_KNOWN_CLASSES} categories "
            f"(found {n_known}), and unlabeled images; add or label images, check which column or "
            "folders hold the labels, or give the number of categories with --n-clusters"
        )


def hold_out_validation(labels: ArrayLike, *, share: float, rng: np.random.Generator) -> Ints:
    """Return sorted positions of a share of each class's labeled images, and of the same share of
    the unlabeled images.

    Of every class with at least two labeled images, at least one is held out and one is not. The
    hidden classes of unlabeled images (-1) are not used.
    """
    known = as_labels(labels, np.size(labels), name="labels")
    assert 0 < share < 1
    held_out = [np.empty(0, dtype=np.int64)]
    for label in np.unique(known):
        members = rng.permutation(np.flatnonzero(known == label))
        n_held_out = round(share * len(members))
        if label != UNLABELED:
            n_held_out = min(max(n_held_out, 1), len(members) - 1)
        held_out.append(members[:n_held_out])
    return np.sort(np.concatenate(held_out))
