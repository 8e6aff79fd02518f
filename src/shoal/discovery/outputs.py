"""What a run found, as the rows of its assignments.csv and categories.csv and as an answer in words.

N images, K categories of which the first C are known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Bools, Floats, Ints
from shoal.clustering.calibration import Calibration
from shoal.clustering.categories import NONE, Membership
from shoal.discovery.stability import range_in_words
from shoal.runs import UNSURE_BELOW, Assignment, Category, RunView
from shoal.words import count, likely

N_EXEMPLARS = 5
"""Images named as typical of a category."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Found:
    """The categories of a collection."""

    names: Sequence[str]
    """(N,) the images."""
    given: Ints
    """(N,) the labels they came with, positions in `classes`, -1 for unlabeled."""
    categories: Ints
    """(N,) the category each was put in, positions in `classes`."""
    classes: Sequence[str]
    """(K,) names, the known categories first."""
    n_known: int
    members: Membership
    ids: Sequence[int]
    """(K,) the id of each category; its position, unless a review has made and ended some."""
    calibration: Calibration | None = None
    """What the confidence of the members rests on."""

    @property
    def is_unsure(self) -> Bools:
        """(N,) which images are more likely wrong than right."""
        mask: Bools = self.members.confidence < UNSURE_BELOW
        return mask

    def in_words(self) -> str:
        """The answer: '14 known categories found, 9 likely new, 212 images unsure'."""
        sizes = np.bincount(self.categories, minlength=len(self.classes)).tolist()
        return _in_words(sizes[: self.n_known], sizes[self.n_known :], int(self.is_unsure.sum()))


def answer(run: RunView) -> str:
    """The answer of a finished run in words, as `Found.in_words` gives it, and how sure K is where it was estimated."""
    known, novel = ([row.size for row in run.categories if row.is_novel == is_novel] for is_novel in (False, True))
    words = _in_words(known, novel, sum(row.confidence < UNSURE_BELOW for row in run.assignments))
    estimate = run.json("estimate") if run.has("estimate.json") else {}
    interval, repeats = estimate.get("interval"), (estimate.get("stability") or {}).get("n_clusters")
    sure = [likely(estimate["n_clusters"], interval, estimate.get("range"))] if interval else []
    sure += [range_in_words(estimate["n_clusters"], repeats)] if repeats else []
    return "; ".join([words, *sure])


def _in_words(known_sizes: Sequence[int], novel_sizes: Sequence[int], n_unsure: int) -> str:
    n_known, n_novel = (sum(size > 0 for size in sizes) for sizes in (known_sizes, novel_sizes))
    known = f"{count(n_known, 'known category')} found"
    if n_known < len(known_sizes):
        known += f" (of {len(known_sizes)})"
    return f"{known}, {n_novel} likely new, {count(n_unsure, 'image')} unsure"


def assignment_rows(found: Found) -> list[Assignment]:
    """A row per image, in their order."""
    members = found.members
    return [
        Assignment(
            path=name,
            label_given=_name(found, int(found.given[i])),
            category_id=found.ids[found.categories[i]],
            category=found.classes[found.categories[i]],
            is_novel=bool(found.categories[i] >= found.n_known),
            confidence=float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=_name(found, int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=_name(found, int(members.second[i])),
        )
        for i, name in enumerate(found.names)
    ]


def category_rows(found: Found) -> list[Category]:
    """A row per category, known ones first, even those that no image was put in."""
    return [_category_row(found, category) for category in range(len(found.classes))]


def _category_row(found: Found, category: int) -> Category:
    rows = np.flatnonzero(found.categories == category)
    members = found.members
    typical = sorted(rows.tolist(), key=lambda row: (-members.typicality[row], found.names[row]))
    nearest, similarity = _nearest_known(members, rows, category, found.n_known)
    return Category(
        category_id=found.ids[category],
        category=found.classes[category],
        is_novel=category >= found.n_known,
        size=len(rows),
        n_labeled=int((found.given[rows] != UNLABELED).sum()),
        confidence=_mean(members.confidence[rows]) if len(rows) else 0.0,
        nearest_known=_name(found, nearest),
        nearest_known_similarity=similarity,
        exemplars=tuple(found.names[row] for row in typical[:N_EXEMPLARS]),
    )


def _nearest_known(members: Membership, rows: Ints, category: int, n_known: int) -> tuple[int, float]:
    """The known category nearest to most of a novel category's images; for a known one there is nothing to say."""
    near = members.nearest_known[rows]
    if category < n_known or not len(rows) or (near == NONE).all():
        return NONE, float("nan")
    chosen = int(np.bincount(near[near != NONE], minlength=1).argmax())
    return chosen, _mean(members.nearest_known_similarity[rows[near == chosen]])


def _mean(values: Floats) -> float:
    """The mean, of a sum that is rounded once: numpy's depends on the order of images in its last bits."""
    return math.fsum(values) / len(values)


def _name(found: Found, category: int) -> str:
    return "" if category == NONE else found.classes[category]
