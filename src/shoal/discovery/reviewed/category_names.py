"""Names and ids of categories after a review: those that the same categories had before.

N images, D columns, K categories of which the first C are known.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.categories import NONE, category_centers, category_names
from shoal.data.collection import PreviousCategories


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptNames:
    """Categories with their names and ids."""

    categories: Ints
    """(N,) positions in `names`."""
    names: list[str]
    """(K,) the known classes first."""
    ids: list[int]
    """(K,)"""
    apart: dict[int, set[int]]
    """By row the positions of the categories that people threw the image out of."""


def name_as_before(
    categories: Ints,
    classes: Sequence[str],
    images: Sequence[str],
    points: Tensor,
    earlier: PreviousCategories,
) -> KeptNames:
    """Keep the id and the name of a category wherever it has mostly the same images, and obey the
    cannot-links.

    `categories` (N,) are positions, known classes first; `points` (N, D) unit rows. A known class
    that no labeled image speaks for is the category with mostly its images. New categories get ids
    and names that nothing had before.
    """
    before = np.array([earlier.categories.get(image, -1) for image in images])  # (N,) ids
    same = mostly_same(categories, before)
    n_known = len(classes)
    filled = set(categories.tolist())
    position_of = {number: at for at, number in enumerate(earlier.class_ids)}
    ids = list(earlier.class_ids)
    number_of = np.arange(int(categories.max()) + 1)
    free = earlier.next_id
    for old in range(n_known, len(number_of)):  # the novel ones
        kept = same.get(old)
        if kept in position_of and position_of[kept] not in filled:
            number_of[old] = position_of[kept]
            continue
        if kept is None or kept in position_of or kept not in earlier.names:
            kept = free
            free = free + 1
        number_of[old] = len(ids)
        ids.append(kept)
    renumbered = number_of[categories]
    at_id = {number: at for at, number in enumerate(ids)}
    apart = {
        row: {at_id[number] for number in earlier.apart[image] if number in at_id}
        for row, image in enumerate(images)
        if image in earlier.apart
    }
    parted = keep_apart(points, renumbered, len(ids), apart)
    if int(parted.max()) == len(ids):
        ids.append(free)
    return KeptNames(categories=parted, names=_names(ids, classes, earlier), ids=ids, apart=apart)


def _names(ids: Sequence[int], classes: Sequence[str], earlier: PreviousCategories) -> list[str]:
    """The names of categories by their ids, known classes first."""
    taken = sorted({*earlier.taken, *earlier.names.values(), *classes})
    n_new = sum(number not in earlier.names for number in ids[len(classes) :])
    new = iter(category_names(taken, n_new)[len(taken) :])
    novel = [
        earlier.names[number] if number in earlier.names else next(new)
        for number in ids[len(classes) :]
    ]
    return [*classes, *novel]


def mostly_same(now: Ints, before: Ints) -> dict[int, int]:
    """Map a group of `now` (N,) to the group of `before` (N,) that shares more than half of the
    larger of both.

    So each is matched once at most. -1 in `before` is no group; such images count for the size of
    what they are in now.
    """
    partner_of: dict[int, int] = {}
    sizes = np.bincount(before[before >= 0], minlength=1)
    for group in np.unique(now).tolist():
        rows = now == group
        shared = np.bincount(before[rows & (before >= 0)], minlength=1)
        best = int(shared.argmax())
        if 2 * int(shared[best]) > max(int(rows.sum()), int(sizes[best])):
            partner_of[group] = best
    return partner_of


def keep_apart(
    points: Tensor, categories: Ints, n_categories: int, apart: Mapping[int, Set[int]]
) -> Ints:
    """(N,) the categories (N,) of unit rows (N, D), 0 … K-1, with no row in a category that `apart`
    names for it.

    Such a row goes to the category with the nearest center, as it was before any row left. One that
    may be in no category with images gets the number K, all of these the same one.
    """
    wrong = {row: ids for row, ids in apart.items() if int(categories[row]) in ids}
    moved = categories.copy()
    for row, best in _nearest_but(points, categories, n_categories, wrong).items():
        moved[row] = n_categories
        if best is not None:
            moved[row] = best
    return moved


def second_but(
    points: Tensor, categories: Ints, n_categories: int, second: Ints, apart: Mapping[int, Set[int]]
) -> Ints:
    """(N,) the second choices (N,), none of them named by `apart` for its row: there the next
    nearest, or -1."""
    own = {
        row: {*forbidden, int(categories[row])}
        for row, forbidden in apart.items()
        if int(second[row]) in forbidden
    }
    chosen = second.copy()
    for row, best in _nearest_but(points, categories, n_categories, own).items():
        chosen[row] = NONE
        if best is not None:
            chosen[row] = best
    return chosen


def _nearest_but(
    points: Tensor, categories: Ints, n_categories: int, forbidden: Mapping[int, Set[int]]
) -> dict[int, int | None]:
    """Map a row of `forbidden` to the category with images whose center is nearest, but for those
    it names, or None."""
    if not forbidden:
        return {}
    centers = category_centers(points, categories, n_categories)  # (K, D)
    rows = points[torch.tensor([*forbidden], device=points.device)].to(centers.dtype)  # (M, D)
    cosines = (rows @ centers.T).cpu().numpy()  # (M, K)
    cosines[:, np.bincount(categories, minlength=n_categories) == 0] = -np.inf
    nearest_of: dict[int, int | None] = {}
    for row, near in zip(forbidden, cosines, strict=True):
        near[sorted(forbidden[row])] = -np.inf
        nearest_of[row] = None
        if np.isfinite(near).any():
            nearest_of[row] = int(near.argmax())
    return nearest_of
