"""Labels held out from every method of a comparison: of some images, and of some whole categories.

They are sampled as in `shoal discover`. Methods see a collection without these labels, and without
the names of categories held out whole.

Shapes: N images, J of them held out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import check_collection
from shoal.discovery.trained.held_out import MAX_NAMED, MIN_CATEGORIES, hold_out
from shoal.errors import DataError, ShoalError
from shoal.words import count, first_few, plural

MIN_HELD_OUT = 10
"""With fewer held-out labels, differences between methods would not be significant."""


@dataclass(frozen=True, kw_only=True)
class LabelSplit:
    """A collection without its held-out labels, and these labels."""

    collection: Collection
    """The images with the labels that methods see."""
    rows: Ints
    """(J,) the images whose labels are held out."""
    labels: Ints
    """(J,) these labels, as positions in `classes`."""
    classes: tuple[str, ...]
    """The names of all labels of the user."""
    hidden: tuple[int, ...]
    """The categories that are held out whole."""

    @property
    def is_novel(self) -> Bools:
        """(J,) which of the images are of a category that is held out whole."""
        return np.isin(self.labels, self.hidden)

    @property
    def units(self) -> Ints:
        """(J,) the sampling unit of each image: the image, or its category if held out whole.

        A unit has the same number in every split of a collection.
        """
        return np.where(self.is_novel, len(self.collection) + self.labels, self.rows)

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The names of the categories that are held out whole."""
        return tuple(self.classes[label] for label in self.hidden)

    def in_words(self) -> str:
        """Describe how many labels are held out, and of which categories."""
        text = f"{count(len(self.rows), 'label')} held out from every method"
        if not self.hidden:
            return text
        n_novel = int(self.is_novel.sum())
        names = first_few(self.hidden_names, MAX_NAMED)
        categories = count(len(self.hidden), "whole category")
        return f"{text}, {n_novel:,} of them of {categories} ({names})"


def split_labels(
    collection: Collection, settings: DiscoverySettings, repeat: int = 0
) -> LabelSplit:
    """Hold out labels; in the first repeat those that `shoal discover` holds out with this seed."""
    held_out = hold_out(collection, replace(settings, seed=settings.seed + repeat))
    rows = held_out.rows
    if len(rows) < MIN_HELD_OUT:
        raise DataError(
            f"{collection.count()}: {count(len(rows), 'label')} can be held out, and a comparison "
            f"needs {MIN_HELD_OUT}; label more images, two or more per category"
        )
    split = LabelSplit(
        collection=without_labels(collection, rows),
        rows=rows,
        labels=collection.labels[rows],
        classes=collection.classes,
        hidden=held_out.hidden,
    )
    try:
        check_collection(split.collection, settings)
    except ShoalError as error:
        raise type(error)(f"without the held-out labels, {error}") from error
    return split


def without_labels(collection: Collection, rows: Ints) -> Collection:
    """Return a collection without the labels of some images, and without categories that have no
    label left."""
    labels = collection.labels.copy()
    labels[rows] = UNLABELED
    is_labeled = labels != UNLABELED
    remaining, numbers = np.unique(labels[is_labeled], return_inverse=True)
    labels[is_labeled] = numbers
    classes = tuple(collection.classes[label] for label in remaining)
    return replace(collection, labels=labels, classes=classes)


def doubts(splits: Sequence[LabelSplit]) -> list[str]:
    """Return a sentence if few or no whole categories are held out."""
    hidden = {label for split in splits for label in split.hidden}
    if not hidden:
        return ["No whole category is held out, so accuracy on novel categories is not measured."]
    if len(hidden) < MIN_CATEGORIES:
        categories = f"{count(len(hidden), 'whole category')} {plural(len(hidden), 'is')}"
        return [f"Only {categories} held out, so Novel is a rough estimate; try --repeats 3."]
    return []
