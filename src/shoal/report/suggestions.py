"""What a curator may want to change: categories that look like one, and given labels that look
wrong.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun, names_today
from shoal.review.suspected_labels import JUDGED_BY, suspected
from shoal.runs import Category

ONE_GROUP = 2 * sqrt(3)
"""The separation of the two halves of an evenly filled group cut in the middle, 3.46 (those of a
bell-shaped one have 2.65); two categories below it look like one that was cut in two. Halves of
[-1, 1]: means ±1/2, variance 1/12."""

MIN_IMAGES = 3
"""Categories with fewer images have no spread to compare with."""

AT_LEAST = 12
"""The closest pairs are listed up to this number, whether they look like one or not."""

MOST_COMPARED = 10_000
"""Images of a category that it is compared by; of a larger one so many, from the most to the least
typical."""

NUMBERED = re.compile(r"novel-\d{3,}( \(\d+\))*")
"""The name of a category, or of a part of one, that nobody has named."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Two categories, at least one of them novel, that may be one."""

    novel: Category
    other: Category
    separation: float
    """How far they lie apart, over the spread along the line between them."""
    second_choice: float
    """Share of the images of both that name the other as their second choice."""

    @property
    def looks_like_one(self) -> bool:
        """Whether they lie as close as the two halves of one would."""
        return self.separation < ONE_GROUP


@dataclass(frozen=True, slots=True)
class SuspiciousLabel:
    """A labeled image that the images around put into another category than that of its label."""

    row: int
    given: str
    found: str
    """The category that the images around speak for; empty for none."""
    certainty: float
    """Confidence in that category, or, of an image in the category of its label, what is left of
    the confidence."""


def suggested_merges(run: ReviewedRun) -> list[Merge]:
    """Pairs of categories that look like one cut in two, and the closest others.

    A pair of named known ones never is.

    Reads the embeddings before the mean shift, which would draw every group together. K² pairs of K
    categories, each over the images of both.
    """
    vectors = run.rows_of("embeddings")
    by_id = {category.category_id: category for category in run.categories}
    members = {number: run.members[number] for number in by_id if number in run.members}
    novel = {
        number
        for number, category in by_id.items()
        if may_be_part(category.category, is_novel=category.is_novel)
    }
    return [
        Merge(by_id[a], by_id[b], gap, _second_choice(run, by_id[a], by_id[b]))
        for a, b, gap in close_pairs(vectors, members, novel, AT_LEAST)
    ]


def may_be_part(name: str, *, is_novel: bool) -> bool:
    """Whether a category may be a part of another one: it is novel, or has no name but the run's.

    After a review a category of which an image was confirmed is known; it may still be half of what
    it should be.
    """
    return is_novel or NUMBERED.fullmatch(name) is not None


def close_pairs(
    vectors: Floats,
    members: Mapping[int, Ints],
    novel: Collection[int],
    most: int,
    apart: Collection[tuple[int, int]] = (),
) -> list[tuple[int, int, float]]:
    """Pairs of categories, the first of each novel, with their separation, the closest first.

    Those that look like one cut in two, up to `most`; where they are few, others too, up to
    `AT_LEAST`. Pairs that people put `apart`, the lower id first, are listed among them and count
    for neither number. `vectors` (N, D); `members` are the rows of each category, too few to
    compare included.
    """
    large = {one: compared(rows) for one, rows in members.items() if len(rows) >= MIN_IMAGES}
    means = {one: vectors[rows].mean(axis=0, dtype=np.float64) for one, rows in large.items()}
    pairs = []
    for a, b in _near_pairs(means, novel):
        gap = separation(
            np.asarray(vectors[large[a]], np.float64), np.asarray(vectors[large[b]], np.float64)
        )
        if gap < float("inf"):
            pairs.append((a, b, gap))
    pairs.sort(key=lambda pair: pair[2])
    open_pairs = [pair for pair in pairs if (min(pair[:2]), max(pair[:2])) not in apart]
    n_alike = sum(gap < ONE_GROUP for *_, gap in open_pairs)
    left = open_pairs[min(most, max(n_alike, AT_LEAST)) :]
    if left:
        return pairs[: pairs.index(left[0])]
    return pairs


def compared(rows: Ints) -> Ints:
    """The rows, or of many a sample at even steps, so that an order in which they are is kept."""
    if len(rows) <= MOST_COMPARED:
        return rows
    chosen: Ints = rows[np.linspace(0, len(rows) - 1, MOST_COMPARED).astype(np.int64)]
    return chosen


def separation(a: Floats, b: Floats) -> float:
    """How far two groups of points, (n, D) and (m, D), lie apart: their distance over the spread
    along a line.

    Ashman's D, √2 |μ_a - μ_b| / √(σ_a² + σ_b²), on the line through both means. Each point is
    placed on the line that the others give: on one that it has drawn to itself, few points of many
    dimensions would always lie far apart. 0 for groups that no line parts, infinite for different
    ones without spread.
    """
    middle = (a.mean(axis=0) + b.mean(axis=0)) / 2
    on_a = _placed(a - middle, b - middle)
    on_b = _placed(b - middle, a - middle)
    gap = -float(on_a.mean() + on_b.mean())
    if gap <= 0:
        return 0.0
    spread = sqrt(float(np.var(on_a, ddof=1) + np.var(on_b, ddof=1)))
    return sqrt(2) * gap / spread if spread > 0 else float("inf")


def _placed(own: Floats, other: Floats) -> Floats:
    """(n,) where each point of a group lies on the line from the mean of the others of its group
    to the other group.
    """
    n = len(own)
    lines = other.mean(axis=0) - (n * own.mean(axis=0) - own) / (n - 1)  # (n, D)
    lengths = np.maximum(np.linalg.norm(lines, axis=1), np.finfo(np.float64).tiny)
    positions: Floats = np.einsum("nd,nd->n", own, lines) / lengths
    return positions


def suspicious_labels(run: ReviewedRun) -> list[SuspiciousLabel]:
    """Labels that look wrong and that nobody has decided on, the surest first."""
    if not run.is_labeled.any():
        raise NotInRun("Suspicious labels are left out: no image came with a label.")
    as_found = {name: run.column(name) for name in JUDGED_BY}
    names: dict[str, str] = {}
    if run.review is not None:
        as_found = run.review.state.columns
        names = names_today(run.review.state)
    suspects = []
    for row, found in suspected(as_found, run.column("status"), names).items():
        image = run.assignments[row]
        certainty = float(np.nan_to_num(image.confidence))
        if image.label_given == image.category:
            certainty = 1 - certainty
        suspects.append(SuspiciousLabel(row, image.label_given, found, certainty))
    return sorted(suspects, key=lambda label: (-label.certainty, label.row))


def _near_pairs(means: Mapping[int, Floats], novel: Collection[int]) -> list[tuple[int, int]]:
    """Each novel category with its three nearest others by their means, each pair once."""
    if len(means) < 2:
        return []
    categories = [*means]
    centers = np.stack([*means.values()])  # (K, D)
    squares = (centers**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * centers @ centers.T  # (K, K), squared
    np.fill_diagonal(distances, np.inf)
    n_near = min(3, len(categories) - 1)
    pairs: dict[frozenset[int], tuple[int, int]] = {}
    for at, category in enumerate(categories):
        if category not in novel:
            continue
        for other in np.argsort(distances[at], kind="stable")[:n_near].tolist():
            pairs.setdefault(frozenset((at, other)), (category, categories[other]))
    return list(pairs.values())


def _second_choice(run: ReviewedRun, a: Category, b: Category) -> float:
    """Share of the images of two categories whose second choice is the other of the two."""
    second = run.column("second_category")
    hits = [second[row] == b.category for row in run.members[a.category_id].tolist()]
    hits += [second[row] == a.category for row in run.members[b.category_id].tolist()]
    return float(np.mean(hits))
