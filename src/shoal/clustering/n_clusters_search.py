"""How many clusters, for a clustering that has no tree: the K whose clusters agree best with the
labels a user has.

Each K costs a whole clustering, so only a few are tried, chosen by Brent's method (Vaze et al.
2022).

N images.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.curve import DEFAULT_MAX_CLUSTERS, known_classes
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.n_clusters_range import check_estimable

MAX_TRIES = 30
"""Most numbers of clusters tried; an interval of 1,000 is narrowed to one number in about 15."""


def search_n_clusters(
    cluster: Callable[[int], Ints],
    labels: Ints,
    *,
    least: int | None = None,
    most: int | None = None,
) -> int:
    """The K with the highest accuracy of `cluster(K)`, (N,), on the labeled images; the smallest of
    equals.

    `cluster` must not look at `labels` (N,), -1 for unlabeled. K lies between `least`, by default
    the number of known classes, and `most`, by default 1,000 or ten times these; it is never below
    the known classes, and never above these and the unlabeled images together: labeled images stay
    in their class.
    """
    check_estimable(least, most, labels)
    n_known = int(known_classes(labels).max()) + 1
    low = max(n_known, least or 0)
    is_labeled = labels != UNLABELED
    n_possible = n_known + int((~is_labeled).sum())
    high = min(n_possible, most or max(DEFAULT_MAX_CLUSTERS, 10 * n_known))
    accuracy_of: dict[int, float] = {}

    def error(number: float) -> float:
        k = int(number)
        if k not in accuracy_of:
            accuracy_of[k] = matched_accuracy(labels[is_labeled], cluster(k)[is_labeled])
        return 1 - accuracy_of[k]

    if low < high:
        # Up to the next whole number, so that the largest K is tried too.
        bounds = (low, np.nextafter(high + 1, low))
        minimize_scalar(
            error, bounds=bounds, method="bounded", options={"xatol": 0.5, "maxiter": MAX_TRIES}
        )
    else:
        accuracy_of[low] = 1.0
    return max(accuracy_of, key=lambda k: (accuracy_of[k], -k))
