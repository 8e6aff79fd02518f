"""Accuracy of clusters under the best matching to classes (Hungarian), and retrieval recall; numpy
and scipy only.

`y_true` and `y_pred` are labels of any kind, one per image. Functions that choose (K, snapshot,
stop) pass labeled images only; functions that evaluate pass the hidden labels.

Shapes: N images, C classes, K clusters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from shoal.arrays import UNLABELED, Bools, Ints, is_missing, name_rows
from shoal.errors import DataError, number


@dataclass(frozen=True)
class Accuracy:
    """Shares of images, 0 to 1, whose cluster is matched to their class; NaN for a subset without
    images.

    Parameters
    ----------
    all
        Of all images.
    known
        Of the images of known classes.
    novel
        Of the other images.

    Examples
    --------
    >>> print(Accuracy(all=0.5, known=0.75, novel=0.25))
    All 50.0 / Known 75.0 / Novel 25.0
    """

    all: float
    known: float
    novel: float

    def __str__(self) -> str:
        parts = {"All": self.all, "Known": self.known, "Novel": self.novel}
        return " / ".join(f"{name} {number(100 * part, 1)}" for name, part in parts.items())


def gcd_accuracy(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> Accuracy:
    """Compute the accuracy of generalized category discovery: one matching over all images,
    evaluated separately on known and novel ones.

    There may be more or fewer clusters than classes; images of unmatched clusters count as wrong.

    If several matchings are equally good, All is the same for each, but what one gains on known
    images another gains on novel ones. Known and Novel are then the middle of their range: the
    names of classes do not matter, neither side is favored, and All stays the mean of the two
    weighted by their images. Exact up to 2^26 images.

    Parameters
    ----------
    y_true
        (N,) true classes of the unlabeled images, names or numbers.
    y_pred
        (N,) the cluster of each.
    is_known
        (N,) whether the true class of each is a known one.

    Returns
    -------
    Accuracy
        The accuracy on all, on known and on novel images.

    Examples
    --------
    >>> gcd_accuracy(["a", "a", "b", "c", "c"], [0, 0, 1, 1, 2], [True, True, True, False, False])
    Accuracy(all=0.8, known=1.0, novel=0.5)
    """
    true = np.asarray(y_true)
    pred = np.asarray(y_pred)
    known = np.asarray(is_known)
    if not true.shape == pred.shape == known.shape == (true.size,) or known.dtype != bool:
        raise DataError(
            f"y_true, y_pred, is_known: found shapes {true.shape}, {pred.shape} and {known.shape} "
            f"of {known.dtype}, expected three of (N,), the last one booleans"
        )
    # numpy turns -1 in a list of names into text.
    none = np.array([is_missing(label) or label in (-1, "-1") for label in true.tolist()])
    none |= [is_missing(label) for label in pred.tolist()]
    if none.any():
        raise DataError(
            f"y_true, y_pred: no label in {name_rows(none)}; score only images that have a label"
        )
    counts, clusters, classes = contingency(true, pred)
    counts_known = np.zeros_like(counts)
    cells = (np.searchsorted(clusters, pred[known]), np.searchsorted(classes, true[known]))
    np.add.at(counts_known, cells, 1)
    # Among the matchings with the most correct images, find those with the most and the fewest
    # known. With this factor, one correct image more always outweighs all known ones. Whole numbers
    # stay exact in float64: no sum along an alternating path exceeds N (N + 1).
    weighted = counts * (counts_known.sum() + 1)
    most = linear_sum_assignment(weighted + counts_known, maximize=True)
    fewest = linear_sum_assignment(weighted - counts_known, maximize=True)
    n_correct = int(counts[most].sum())
    n_correct_known = float(counts_known[most].sum() + counts_known[fewest].sum()) / 2
    n_known = int(known.sum())
    return Accuracy(
        _share(n_correct, len(true)),
        _share(n_correct_known, n_known),
        _share(n_correct - n_correct_known, len(true) - n_known),
    )


def _share(part: float, whole: int) -> float:
    return float(part) / whole if whole else float("nan")


def matched_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Return the share of images that are correct under the best matching; NaN without images."""
    counts = contingency(y_true, y_pred)[0]
    n_correct = counts[linear_sum_assignment(counts, maximize=True)].sum()
    return _share(n_correct, int(counts.sum()))


def match(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Match clusters one-to-one to classes so that the most images are correct; return the labels
    (m,) of clusters and of their classes. Pairs without a common image are left out.

    Among equally good matchings the choice depends neither on the order of images nor on the names
    of clusters, except that of clusters with identical counts the lowest name is matched first. It
    may depend on the names of classes: how many images are correct does not, which ones may.
    """
    counts, clusters, classes = contingency(y_true, y_pred)
    # Sort clusters by their counts, and those with the same counts by name.
    order = np.lexsort(counts.T[::-1]) if counts.size else np.arange(0)
    rows, columns = linear_sum_assignment(counts[order], maximize=True)
    rows = order[rows]
    is_shared = counts[rows, columns] > 0
    return clusters[rows[is_shared]], classes[columns[is_shared]]


def match_clusters(labels: Ints, clusters: Ints) -> Ints:
    """Return the class (K,) matched to each of the clusters (N,), 0 … K-1, by labels (N,); -1 for
    none."""
    is_labeled = labels != UNLABELED
    class_of = np.full(int(clusters.max()) + 1, UNLABELED)
    matched, classes = match(labels[is_labeled], clusters[is_labeled])
    class_of[matched.astype(np.int64)] = classes
    return class_of


def correct_images(y_true: ArrayLike, y_pred: ArrayLike) -> Bools:
    """Return which images (N,) are in the cluster that is matched to their class."""
    clusters, classes = match(y_true, y_pred)
    pairs = set(zip(classes.tolist(), clusters.tolist(), strict=True))
    images = zip(np.asarray(y_true).tolist(), np.asarray(y_pred).tolist(), strict=True)
    return np.array([image in pairs for image in images], dtype=bool)


def is_worse(is_correct: Bools, other: Bools) -> bool:
    """Return whether fewer images (N,) are correct than in `other` (N,), by more than a standard
    error of the difference.

    Images on which both agree do not count. If neither is better, the others are coin tosses, so
    the standard error is the square root of their number.
    """
    difference = other.astype(np.int64) - is_correct
    return bool(difference.sum() > np.linalg.norm(difference))


def contingency(
    y_true: ArrayLike, y_pred: ArrayLike
) -> tuple[Ints, NDArray[np.generic], NDArray[np.generic]]:
    """Count images per cluster and class: counts (K, C), the cluster labels (K,) and the class
    labels (C,), both sorted."""
    classes, column = np.unique(np.asarray(y_true), return_inverse=True)
    clusters, row = np.unique(np.asarray(y_pred), return_inverse=True)
    cells = np.bincount(row * len(classes) + column, minlength=len(clusters) * len(classes))
    return cells.reshape(len(clusters), len(classes)).astype(np.int64), clusters, classes


def recall_at_k(neighbors: Ints, y_queries: ArrayLike, y_bank: ArrayLike) -> float:
    """Return the share of queries with at least one neighbor of their class among their k nearest.

    `neighbors` (Q, k) are rows of the bank, without the query's own row.
    """
    near = np.asarray(y_bank)[neighbors]
    return float((near == np.asarray(y_queries)[:, None]).any(axis=1).mean())
