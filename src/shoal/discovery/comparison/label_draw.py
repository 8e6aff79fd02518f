"""The labels that are withheld from every method alike: those of some images, and of some whole
categories.

They are drawn as `shoal discover` draws those that judge its training. What methods are given is a
collection without them, in which a category that was kept whole has no name either.

N images, J of them kept.
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

MIN_KEPT = 10
"""Fewer kept labels tell no two methods apart."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelDraw:
    """A draw of labels that are withheld: what methods are given, and what judges them."""

    given: Collection
    """The images with the labels that methods see."""
    rows: Ints
    """(J,) the images whose labels are kept."""
    labels: Ints
    """(J,) these labels, positions in `classes`."""
    classes: tuple[str, ...]
    """Of the user's labels, those of categories that were kept whole too."""
    hidden: tuple[int, ...]
    """Categories that were kept whole."""

    @property
    def is_novel(self) -> Bools:
        """(J,) which of the images are of a category that was kept whole."""
        return np.isin(self.labels, self.hidden)

    @property
    def units(self) -> Ints:
        """(J,) a number for what was drawn as one: an image, or a whole category; the same one in
        every draw."""
        return np.where(self.is_novel, len(self.given) + self.labels, self.rows)

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The names of the categories that were kept whole."""
        return tuple(self.classes[label] for label in self.hidden)

    def in_words(self) -> str:
        """How many labels are kept, and from which categories."""
        n_novel = int(self.is_novel.sum())
        some = count(len(self.rows) - n_novel, "image")
        if not self.hidden:
            return f"{count(len(self.rows), 'label')} kept from every method"
        names = first_few(self.hidden_names, MAX_NAMED)
        whole = (
            f"{count(n_novel, 'image')} of {count(len(self.hidden), 'whole category')} ({names})"
        )
        labels = f"{count(len(self.rows), 'label')} kept from every method"
        return f"{labels}: those of {some} of known categories, and {whole}"


def withhold_labels(
    collection: Collection, settings: DiscoverySettings, draw: int = 0
) -> LabelDraw:
    """Draw the labels that methods do not see; the first draw is that of `shoal discover` with the
    same seed."""
    held_out = hold_out(collection, replace(settings, seed=settings.seed + draw))
    rows = held_out.rows
    if len(rows) < MIN_KEPT:
        raise DataError(
            f"{collection.count()}: {count(len(rows), 'label')} could be kept to judge by, and a "
            f"comparison needs {MIN_KEPT}; label more images, two or more of a category"
        )
    kept = LabelDraw(
        given=without_labels(collection, rows),
        rows=rows,
        labels=collection.labels[rows],
        classes=collection.classes,
        hidden=held_out.hidden,
    )
    try:
        check_collection(kept.given, settings)
    except ShoalError as error:
        raise type(error)(f"without the labels that are kept to judge by, {error}") from error
    return kept


def without_labels(collection: Collection, rows: Ints) -> Collection:
    """The same images without the labels of some; a category that has none left is forgotten."""
    labels = collection.labels.copy()
    labels[rows] = UNLABELED
    names, numbers = np.unique(labels[labels != UNLABELED], return_inverse=True)
    labels[labels != UNLABELED] = numbers
    return replace(
        collection, labels=labels, classes=tuple(collection.classes[label] for label in names)
    )


def doubt_draw(draws: Sequence[LabelDraw]) -> str | None:
    """Say that the labels which are kept say little about novel categories, where they do."""
    whole = {label for kept in draws for label in kept.hidden}
    if not whole:
        return (
            f"with fewer than {MIN_CATEGORIES} known categories of two labeled images or more none "
            "can be kept whole, so nothing tells how methods do on novel ones"
        )
    if len(whole) < MIN_CATEGORIES:
        few = f"{count(len(whole), 'category')} {plural(len(whole), 'is')}"
        return f"only {few} kept whole, which says little about novel ones; try --draws 3"
    return None
