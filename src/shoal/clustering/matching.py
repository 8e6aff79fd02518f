"""How well clusters match classes: Hungarian accuracies, retrieval recall, NMI and ARI. numpy and
scipy only.

`y_true` and `y_pred` are labels of any kind, one per image. Whoever chooses (K, snapshot, stop)
passes labeled images only; whoever scores passes the unlabeled ones with their hidden labels.

N images, C classes, K clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from shoal.arrays import UNLABELED, Bools, Ints, is_missing, name_rows
from shoal.errors import DataError


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
        return " / ".join(
            f"{name} {'–' if math.isnan(part) else f'{100 * part:.1f}'}"
            for name, part in parts.items()
        )


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
    counts, of_known = _tables(y_true, y_pred, is_known)
    agreed, gained = _middle(counts, of_known)
    n_images = int(counts.sum())
    n_known = int(of_known.sum())
    return Accuracy(
        _share(agreed, n_images),
        _share(gained, n_known),
        _share(agreed - gained, n_images - n_known),
    )


def matched_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Share of images that agree under the best one-to-one matching; NaN without images."""
    matching = match(y_true, y_pred)
    return _share(int(matching.counts.sum()), len(np.asarray(y_true)))


def match(y_true: ArrayLike, y_pred: ArrayLike) -> Matching:
    """Match clusters to classes so that the most images agree (Hungarian; rectangular if their
    numbers differ).

    For whoever needs one mapping. Among equally good matchings the choice does not depend on the
    order of images. Nor does it on the names of clusters, except for those that hold the very same
    counts: of these the lowest name is matched first. It may depend on the names of classes: how
    many images agree does not, which ones may.
    """
    true, pred = _pair(y_true, y_pred)
    counts, clusters, classes = contingency(true, pred)
    # Clusters by what they hold, those that hold the same by name.
    order = np.lexsort(counts.T[::-1]) if counts.size else np.arange(0)
    rows, columns = linear_sum_assignment(counts[order], maximize=True)
    rows = order[rows]
    agreed = counts[rows, columns]
    shared = agreed > 0
    return Matching(clusters[rows[shared]], classes[columns[shared]], agreed[shared])


def put_right(y_true: ArrayLike, y_pred: ArrayLike) -> Bools:
    """(N,) which images are in the cluster that is matched to their class."""
    matching = match(y_true, y_pred)
    class_of = dict(zip(matching.clusters.tolist(), matching.classes.tolist(), strict=True))
    true = np.asarray(y_true).tolist()
    pred = np.asarray(y_pred).tolist()
    return np.array(
        [class_of.get(cluster) == label for label, cluster in zip(true, pred, strict=True)],
        dtype=bool,
    )


def is_worse(right: Bools, other: Bools) -> bool:
    """Whether fewer images are right than in the other, by more than a standard error of the
    difference."""
    difference = other.astype(np.int64) - right
    return bool(difference.sum() > np.linalg.norm(difference))


def drawn_units(rows: Ints, labels: Ints, hidden: Sequence[int], n_images: int) -> Ints:
    """(J,) a number for what was drawn as one: an image of `rows` (J,), or a whole category that
    was hidden."""
    return np.where(np.isin(labels, hidden), n_images + labels, rows)


def contingency(
    y_true: ArrayLike, y_pred: ArrayLike
) -> tuple[Ints, NDArray[np.generic], NDArray[np.generic]]:
    """Count images per (cluster, class): counts (K, C), the cluster labels (K,) and the class
    labels (C,), sorted."""
    true, pred = _pair(y_true, y_pred)
    classes, column = np.unique(true, return_inverse=True)
    clusters, row = np.unique(pred, return_inverse=True)
    cells = np.bincount(row * len(classes) + column, minlength=len(clusters) * len(classes))
    return cells.reshape(len(clusters), len(classes)).astype(np.int64), clusters, classes


def recall_at_k(neighbors: ArrayLike, y_queries: ArrayLike, y_bank: ArrayLike) -> float:
    """Share of queries with at least one neighbor of their own class among their k nearest.

    `neighbors` (Q, k) are rows of the bank, a query's own row left out.
    """
    near = np.asarray(neighbors)
    queries = np.asarray(y_queries)
    bank = np.asarray(y_bank)
    return _mean((bank[near] == queries[:, None]).any(axis=1))


def normalized_mutual_info(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """NMI of scikit-learn: 1 for the same partition, 0 for independent ones."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_pair(y_true, y_pred)))


def adjusted_rand(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """ARI of scikit-learn: 1 for the same partition, about 0 for a random one."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_pair(y_true, y_pred)))


def _middle(counts: Ints, gains: NDArray[np.int64 | np.float64]) -> tuple[int, float]:
    """Images that agree under the best matchings of `counts` (K, C), and the middle of what these
    add up to in `gains`.

    No matching gains more than all of `gains`, so weighted by more than that one image more always
    decides, and gains decide between equally good matchings: once for the most, once for the least.
    Whole numbers stay exact in float64: along an alternating path the cells add up to at most N, so
    with counts for gains nothing exceeds N (N + 1).
    """
    total = gains.sum()
    ends = []
    agreed = 0
    for sign in (1, -1):
        pairs = linear_sum_assignment(counts * (total + 1) + sign * gains, maximize=True)
        agreed = int(counts[pairs].sum())
        ends.append(float(gains[pairs].sum()))
    return agreed, sum(ends) / 2


def _share(part: float, whole: int) -> float:
    return float(part) / whole if whole else float("nan")


def _tables(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> tuple[Ints, Ints]:
    """Count images per (cluster, class), all of them and those of known classes; (K, C) each."""
    true, pred = _scored(y_true, y_pred)
    known = _as_mask(is_known, len(true))
    counts, clusters, classes = contingency(true, pred)
    of_known = np.zeros_like(counts)
    np.add.at(
        of_known, (np.searchsorted(clusters, pred[known]), np.searchsorted(classes, true[known])), 1
    )
    return counts, of_known


def _scored(
    y_true: ArrayLike, y_pred: ArrayLike
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """As `_pair`; refuses the mark of unlabeled images, which would be scored as a class of their
    own."""
    true, pred = _pair(y_true, y_pred)
    # Numpy makes text of -1 in a list of names.
    mark = str(UNLABELED) if true.dtype.kind == "U" else UNLABELED
    unlabeled = np.asarray(true == mark)
    if unlabeled.any():
        raise DataError(
            f"y_true: -1, unlabeled, in {name_rows(unlabeled)}; score only images that have a label"
        )
    return true, pred


def _pair(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    true = _as_array(y_true, "y_true")
    pred = _as_array(y_pred, "y_pred")
    if true.ndim != 1 or true.shape != pred.shape:
        raise DataError(
            f"y_true, y_pred: found shapes {true.shape} and {pred.shape}, expected two of (N,)"
        )
    for name, labels in (("y_true", true), ("y_pred", pred)):
        missing = _is_missing(labels)
        if missing.any():
            raise DataError(
                f"{name}: None or NaN in {name_rows(missing)}; score only images that have a label"
            )
        if (
            labels.dtype == object
            and len({isinstance(label, str) for label in labels.tolist()}) > 1
        ):
            raise DataError(
                f"{name}: found both names and numbers, expected either; write all labels the same way"
            )
    return true, pred


def _as_array(labels: ArrayLike, name: str) -> NDArray[np.generic]:
    try:
        return np.asarray(labels)
    except ValueError as error:  # lists of different lengths
        raise DataError(
            f"{name}: found lists inside, expected (N,), one label per image"
        ) from error


def _is_missing(labels: NDArray[np.generic]) -> Bools:
    """(N,) where a label is None, NaN or NA."""
    if labels.dtype == object:
        return np.array([is_missing(label) for label in labels.tolist()], dtype=bool)
    return np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(len(labels), dtype=bool)


def _as_mask(is_known: ArrayLike, n_rows: int) -> Bools:
    mask = np.asarray(is_known)
    if mask.shape != (n_rows,) or mask.dtype != bool:
        raise DataError(
            f"is_known: found {mask.dtype} of shape {mask.shape}, expected booleans of shape ({n_rows},)"
        )
    return mask


def _mean(values: NDArray[np.bool_ | np.float64]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
