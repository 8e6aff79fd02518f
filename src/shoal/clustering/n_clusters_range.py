"""A number of clusters as users give it: one number, or a range that the estimate keeps to."""

import re
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_count
from shoal.errors import UsageError

Range = tuple[int, int]
"""The least and the largest number of clusters, both included."""

EXPECTED = "expected a whole number, or a range such as 30-50, (30, 50) in Python"


def read_n_clusters(given: Any) -> tuple[int | None, Range | None]:
    """One number, or a range, of what was given: 40, '40', '30-50', (30, 50) or None.

    A range of one number is that number.
    """
    if given is None:
        return None, None
    if isinstance(given, str):
        given = _read(given)
    if not isinstance(given, tuple | list):
        return as_count(given, name="n_clusters", least=1), None
    if len(given) != 2:
        raise UsageError(f"n_clusters: found {given!r}, {EXPECTED}")
    low, high = (as_count(end, name="n_clusters", least=1) for end in given)
    if low > high:
        raise UsageError(
            f"n_clusters: found {low}-{high}, expected the smaller number first, {high}-{low}"
        )
    return (low, None) if low == high else (None, (low, high))


def _read(text: str) -> Any:
    matched = re.fullmatch(r"\s*(\d+)\s*(?:[-–]\s*(\d+)\s*)?", text)
    if matched is None:
        raise UsageError(f"n_clusters: found {text!r}, {EXPECTED}")
    low, high = matched.groups()
    return int(low) if high is None else (int(low), int(high))


def check_n_clusters(n_clusters: int, known: Ints, n_rows: int) -> int:
    """Refuse a K above the images or, in a partly labeled collection, below its known classes."""
    as_count(n_clusters, name="n_clusters")
    n_known = len(np.unique(known[known != UNLABELED]))
    # Where every image is labeled there is nothing to discover, and fewer clusters than classes is
    # a plain coarser cut.
    least = max(n_known, 1) if (known == UNLABELED).any() else 1
    if not least <= n_clusters <= n_rows:
        raise UsageError(
            f"n_clusters: found {n_clusters} with {n_known} known classes and {n_rows} images, "
            f"expected {least} to {n_rows}"
        )
    return int(n_clusters)


def check_estimable(least: int | None, most: int | None, known: Ints) -> None:
    """Refuse to estimate without labels (N,), -1 for unlabeled, and a range in which no number of
    clusters can be."""
    if (known == UNLABELED).all():
        asked = "none" if least is None and most is None else "a range"
        raise UsageError(
            f"n_clusters: found {asked} and no labels; give the number of clusters, or labels of some images to "
            "estimate it"
        )
    n_known = len(np.unique(known[known != UNLABELED]))
    if most is not None and most < n_known:
        raise UsageError(
            f"n_clusters: found a range that ends at {most:,}, below the {n_known:,} known categories; expected one "
            f"that reaches {n_known:,}"
        )
    if least is not None and least > len(known):
        raise UsageError(
            f"n_clusters: found a range that begins at {least:,}, above the {len(known):,} images; expected one that "
            f"begins at {len(known):,} or below"
        )


def keep_to(n_clusters: int, least: int | None, most: int | None) -> int:
    """The number within the range that is nearest; an end that is None is open."""
    number = n_clusters if most is None else min(n_clusters, most)
    return number if least is None else max(number, least)
