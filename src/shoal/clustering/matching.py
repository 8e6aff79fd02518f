"""How well clusters match classes: Hungarian accuracies and retrieval recall. numpy and scipy only.

`y_true` and `y_pred` are labels of any kind, one per image. Whoever chooses (K, snapshot, stop)
passes labeled images only; whoever scores passes the unlabeled ones with their hidden labels.

N images, C classes, K clusters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from shoal.arrays import UNLABELED, Bools, Ints, is_missing, name_rows
from shoal.errors import DataError
from shoal.words import number


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of images in [0, 1] whose cluster is matched to their class; NaN for a subset without
    images.

    Parameters
    ----------
    all
        Of all images.
    known
        Of those whose true class is a known one.
    novel
        Of the others.

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


@dataclass(frozen=True, slots=True)
class Matching:
    """A one-to-one assignment of clusters to classes that agrees on the most images."""

    clusters: NDArray[np.generic]  # (m,) labels in y_pred
    classes: NDArray[np.generic]  # (m,) labels in y_true, same order
    counts: Ints  # (m,) images on which the pair agrees; pairs that share none are left out


def gcd_accuracy(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> Accuracy:
    """Accuracy of generalized category discovery: one matching over all images, then read on known
    and novel ones.

    Clusters may be more or fewer than classes; images of unmatched clusters count as wrong.

    Often several matchings agree on the most images, and what one of them gains on known images
    another gains on novel ones. All is the same for each. Known and Novel are the middle of what
    they range over: no name of a class decides, neither side is favored, and All stays the mean of
    the two weighted by their images. Exact up to 2^26 images.

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
        The shares of all, of known and of novel images that are right.

    Examples
    --------
    >>> gcd_accuracy(["a", "a", "b", "c", "c"], [0, 0, 1, 1, 2], [True, True, True, False, False])
    Accuracy(all=0.8, known=1.0, novel=0.5)
    """
    true = _as_labels(y_true, "y_true")
    pred = _as_labels(y_pred, "y_pred")
    known = np.asarray(is_known)
    if true.shape != pred.shape or known.shape != true.shape or known.dtype != bool:
        raise DataError(
            f"y_true, y_pred, is_known: found shapes {true.shape}, {pred.shape} and {known.shape} "
            f"of {known.dtype}, expected three of (N,), the last one booleans"
        )
    # Numpy makes text of -1 in a list of names.
    is_unlabeled = np.isin(true, [UNLABELED] if true.dtype.kind != "U" else [str(UNLABELED)])
    if is_unlabeled.any():
        raise DataError(
            f"y_true: -1, unlabeled, in {name_rows(is_unlabeled)}; score only images that have a "
            "label"
        )
    counts, clusters, classes = contingency(true, pred)
    of_known = np.zeros_like(counts)
    cells = (np.searchsorted(clusters, pred[known]), np.searchsorted(classes, true[known]))
    np.add.at(of_known, cells, 1)
    n_right, n_right_known = _middle(counts, of_known)
    n_known = int(known.sum())
    return Accuracy(
        _share(n_right, len(true)),
        _share(n_right_known, n_known),
        _share(n_right - n_right_known, len(true) - n_known),
    )


def _as_labels(labels: ArrayLike, name: str) -> NDArray[np.generic]:
    """Labels (N,), each of which is one, all names or all numbers."""
    try:
        array = np.asarray(labels)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{name}: found lists inside, expected (N,), a label each") from error
    if array.ndim != 1:
        raise DataError(f"{name}: found shape {array.shape}, expected (N,), one label per image")
    values = array.tolist()
    is_without = np.array([is_missing(label) for label in values], dtype=bool)
    if is_without.any():
        raise DataError(
            f"{name}: None or NaN in {name_rows(is_without)}; score only images that have a label"
        )
    if len({isinstance(label, str) for label in values}) > 1:
        raise DataError(
            f"{name}: found both names and numbers, expected either; write all labels the same way"
        )
    return array


def _middle(counts: Ints, gains: Ints) -> tuple[int, float]:
    """Images that agree under the best matchings of `counts` (K, C), and the middle of what these
    add up to in `gains`.

    No matching gains more than all of `gains`, so weighted by more than that one image more always
    decides, and gains decide between equally good matchings: once for the most, once for the least.
    Whole numbers stay exact in float64: along an alternating path the cells add up to at most N, so
    with counts for gains nothing exceeds N (N + 1).
    """
    weighted = counts * (gains.sum() + 1)
    most = linear_sum_assignment(weighted + gains, maximize=True)
    least = linear_sum_assignment(weighted - gains, maximize=True)
    return int(counts[most].sum()), float(gains[most].sum() + gains[least].sum()) / 2


def _share(part: float, whole: int) -> float:
    return float(part) / whole if whole else float("nan")


def matched_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Share of images that agree under the best one-to-one matching; NaN without images."""
    return _share(int(match(y_true, y_pred).counts.sum()), len(np.asarray(y_true)))


def match(y_true: ArrayLike, y_pred: ArrayLike) -> Matching:
    """Match clusters to classes so that the most images agree (Hungarian; rectangular if their
    numbers differ).

    For whoever needs one mapping. Among equally good matchings the choice does not depend on the
    order of images. Nor does it on the names of clusters, except for those that hold the very same
    counts: of these the lowest name is matched first. It may depend on the names of classes: how
    many images agree does not, which ones may.
    """
    counts, clusters, classes = contingency(y_true, y_pred)
    # Clusters by what they hold, those that hold the same by name.
    order = np.lexsort(counts.T[::-1]) if counts.size else np.arange(0)
    rows, columns = linear_sum_assignment(counts[order], maximize=True)
    rows = order[rows]
    agreed = counts[rows, columns]
    shared = agreed > 0
    return Matching(clusters[rows[shared]], classes[columns[shared]], agreed[shared])


def match_clusters(labels: Ints, clusters: Ints) -> Ints:
    """(K,) the class matched to each of the clusters (N,), 0 … K-1, by labels (N,); -1 for none."""
    labeled = labels != UNLABELED
    class_of = np.full(int(clusters.max()) + 1, UNLABELED)
    if labeled.any():
        matching = match(labels[labeled], clusters[labeled])
        class_of[matching.clusters.astype(np.int64)] = matching.classes
    return class_of


def put_right(y_true: ArrayLike, y_pred: ArrayLike) -> Bools:
    """(N,) which images are in the cluster that is matched to their class."""
    matching = match(y_true, y_pred)
    pairs = set(zip(matching.classes.tolist(), matching.clusters.tolist(), strict=True))
    images = zip(np.asarray(y_true).tolist(), np.asarray(y_pred).tolist(), strict=True)
    return np.array([image in pairs for image in images], dtype=bool)


def is_worse(right: Bools, other: Bools) -> bool:
    """Whether fewer images are right than in the other, by more than a standard error of the
    difference."""
    difference = other.astype(np.int64) - right
    return bool(difference.sum() > np.linalg.norm(difference))


def contingency(
    y_true: ArrayLike, y_pred: ArrayLike
) -> tuple[Ints, NDArray[np.generic], NDArray[np.generic]]:
    """Count images per (cluster, class): counts (K, C), the cluster labels (K,) and the class
    labels (C,), sorted."""
    classes, column = np.unique(np.asarray(y_true), return_inverse=True)
    clusters, row = np.unique(np.asarray(y_pred), return_inverse=True)
    cells = np.bincount(row * len(classes) + column, minlength=len(clusters) * len(classes))
    return cells.reshape(len(clusters), len(classes)).astype(np.int64), clusters, classes


def recall_at_k(neighbors: Ints, y_queries: ArrayLike, y_bank: ArrayLike) -> float:
    """Share of queries with at least one neighbor of their own class among their k nearest.

    `neighbors` (Q, k) are rows of the bank, a query's own row left out.
    """
    near = np.asarray(y_bank)[neighbors]
    return float((near == np.asarray(y_queries)[:, None]).any(axis=1).mean())
