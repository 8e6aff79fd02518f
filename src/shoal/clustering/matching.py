"""How well clusters match classes: Hungarian accuracies, retrieval recall, NMI and ARI. numpy and scipy only.

`y_true` and `y_pred` are labels of any kind, one per image. Whoever chooses (K, snapshot, stop) passes labeled images
only; whoever scores passes the unlabeled ones with their hidden labels.

N images, C classes, K clusters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from shoal.arrays import Bools, Ints
from shoal.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of images in [0, 1] whose cluster is matched to their class; NaN for a subset without images."""

    all: float
    known: float
    novel: float

    def __str__(self) -> str:
        return f"All {100 * self.all:.1f} / Known {100 * self.known:.1f} / Novel {100 * self.novel:.1f}"


@dataclass(frozen=True, slots=True)
class Matching:
    """A one-to-one assignment of clusters to classes that agrees on the most images."""

    clusters: NDArray[np.generic]  # (m,) labels in y_pred
    classes: NDArray[np.generic]  # (m,) labels in y_true, same order
    counts: Ints  # (m,) images on which the pair agrees; pairs that share none are left out


def gcd_accuracy(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> Accuracy:
    """Accuracy of generalized category discovery: one matching over all images, then read on known and novel ones.

    Pass the unlabeled images. `is_known` (N,) says whether an image's true class is a known one. Clusters may be more
    or fewer than classes; images of unmatched clusters count as wrong.
    """
    correct, known = _correct(y_true, y_pred), _as_mask(is_known, len(np.asarray(y_true)))
    return Accuracy(_mean(correct), _mean(correct[known]), _mean(correct[~known]))


def accuracy_per_subset(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> Accuracy:
    """As `gcd_accuracy`, but known and novel images are matched separately, each on their own.

    The older metric (v1 in released code). A cluster may serve a known and a novel class at once, so it flatters.
    """
    true, pred = _pair(y_true, y_pred)
    known = _as_mask(is_known, len(true))
    return Accuracy(
        matched_accuracy(true, pred),
        matched_accuracy(true[known], pred[known]),
        matched_accuracy(true[~known], pred[~known]),
    )


def class_averaged_accuracy(y_true: ArrayLike, y_pred: ArrayLike, is_known: ArrayLike) -> Accuracy:
    """As `gcd_accuracy`, but every class counts the same however many images it has (for long tails)."""
    correct, known = _correct(y_true, y_pred), _as_mask(is_known, len(np.asarray(y_true)))
    inverse = np.unique(np.asarray(y_true), return_inverse=True)[1]
    sizes = np.bincount(inverse)  # (C,)
    share = np.bincount(inverse, weights=correct) / sizes
    class_is_known = np.bincount(inverse, weights=known) / sizes
    if not np.isin(class_is_known, (0, 1)).all():
        raise DataError("is_known: a class has both known and novel images; expected one value per true class")
    of_known = class_is_known == 1
    return Accuracy(_mean(share), _mean(share[of_known]), _mean(share[~of_known]))


def matched_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Share of images that agree under the best one-to-one matching; NaN without images."""
    return _mean(_correct(y_true, y_pred))


def match(y_true: ArrayLike, y_pred: ArrayLike) -> Matching:
    """Match clusters to classes so that the most images agree (Hungarian; rectangular if their numbers differ).

    Among equally good matchings the choice does not depend on the order of images or on the names of clusters.
    """
    true, pred = _pair(y_true, y_pred)
    counts, clusters, classes = contingency(true, pred)
    order = np.lexsort(counts.T[::-1])  # clusters by what they hold, so that their names cannot break a tie
    rows, columns = linear_sum_assignment(counts[order], maximize=True)
    rows = order[rows]
    agreed = counts[rows, columns]
    shared = agreed > 0
    return Matching(clusters[rows[shared]], classes[columns[shared]], agreed[shared])


def contingency(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[Ints, NDArray[np.generic], NDArray[np.generic]]:
    """Count images per (cluster, class): counts (K, C), the cluster labels (K,) and the class labels (C,), sorted."""
    true, pred = _pair(y_true, y_pred)
    classes, column = np.unique(true, return_inverse=True)
    clusters, row = np.unique(pred, return_inverse=True)
    cells = np.bincount(row * len(classes) + column, minlength=len(clusters) * len(classes))
    return cells.reshape(len(clusters), len(classes)).astype(np.int64), clusters, classes


def recall_at_k(neighbors: ArrayLike, y_queries: ArrayLike, y_bank: ArrayLike, k: int) -> float:
    """Share of queries with at least one neighbor of their own class among the k nearest.

    `neighbors` (Q, k or more) are rows of the bank, nearest first, a query's own row left out.
    """
    found, queries, bank = np.asarray(neighbors), np.asarray(y_queries), np.asarray(y_bank)
    if found.ndim != 2 or len(found) != len(queries) or not 1 <= k <= found.shape[1]:
        raise UsageError(
            f"recall_at_k: found neighbors {found.shape}, {len(queries)} queries and k={k}, "
            "expected one list of at least k per query"
        )
    return _mean((bank[found[:, :k]] == queries[:, None]).any(axis=1))


def normalized_mutual_info(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """NMI of scikit-learn: 1 for the same partition, 0 for independent ones."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_pair(y_true, y_pred)))


def adjusted_rand(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """ARI of scikit-learn: 1 for the same partition, about 0 for a random one."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_pair(y_true, y_pred)))


def _correct(y_true: ArrayLike, y_pred: ArrayLike) -> Bools:
    true, pred = _pair(y_true, y_pred)
    if len(true) == 0:
        return np.zeros(0, dtype=bool)
    matching = match(true, pred)
    order = np.argsort(matching.clusters)
    clusters, classes = matching.clusters[order], matching.classes[order]
    position = np.searchsorted(clusters, pred).clip(max=len(clusters) - 1)
    correct: Bools = (clusters[position] == pred) & (classes[position] == true)
    return correct


def _pair(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    true, pred = np.asarray(y_true), np.asarray(y_pred)
    if true.ndim != 1 or true.shape != pred.shape:
        raise DataError(f"y_true, y_pred: found shapes {true.shape} and {pred.shape}, expected two of (N,)")
    return true, pred


def _as_mask(is_known: ArrayLike, n_rows: int) -> Bools:
    mask = np.asarray(is_known)
    if mask.shape != (n_rows,) or mask.dtype != bool:
        raise DataError(f"is_known: found {mask.dtype} of shape {mask.shape}, expected booleans of shape ({n_rows},)")
    return mask


def _mean(values: NDArray[np.bool_ | np.float64]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
