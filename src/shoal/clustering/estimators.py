"""Mean-shift and Ward clustering of ready embeddings as scikit-learn estimators.

N images, D columns, k neighbors, C known classes.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from shoal.arrays import (
    UNLABELED,
    Floats,
    Ints,
    as_class,
    as_count,
    as_number,
    fold_unlabeled,
    name_rows,
    sort_classes,
)
from shoal.clustering.categories import (
    category_names,
    number_clusters,
    outlier_scores,
    same_category_share,
    vote,
)
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.n_clusters import DEFAULT_RULE, read_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.device import choose_device
from shoal.errors import DataError, UsageError

Labels = Sequence[object] | NDArray[np.generic] | None
"""Names or numbers of the labeled rows, as `fit` takes them."""

ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Least outlier score that means anything: by about this much cosines change when rows are rounded
to float32."""


class MeanShiftClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Discover known and novel categories in embeddings of which some are labeled (the paper's
    Algorithm 1).

    Rows are scaled to length 1. A row of zeros has no direction and is refused; where X holds whole
    numbers, counts of nothing, it is taken for the direction (1, …, 1), with a warning that names
    the rows.

    Parameters
    ----------
    n_clusters
        How many clusters, at most the number of distinct rows; None estimates it from the labels, a
        range such as (30, 50) too, and keeps to it.
    n_neighbors
        Neighbors a point moves toward, itself not counted.
    alpha
        Weight of their mean; 0 leaves every point where it is.
    kernel
        'knn' (the paper's), or 'uniform' or 'gaussian' within a fixed radius.
    max_shifts
        Most shifts tried; labeled accuracy stops them earlier.
    rule
        How the number of clusters is estimated: 'pairs', or 'paper' for section 4.3.
    estimate_shifts
        Shifts made before that estimate; rule='paper' with 0 is the paper's.
    max_clusters
        Largest number of clusters the estimate tries; None: 1,000 or ten times the known classes.
    must_link
        Whether the labeled rows of a class begin as one cluster, and no cluster holds two classes;
        False is the paper's.
    try_average
        Whether clusters may be joined by average linkage, where the labels say that is better than
        Ward's; False is the paper's.
    split_mixtures
        Whether a cluster of labeled rows that likely holds a novel category is split, where the
        number of clusters is estimated; False is the paper's.
    outlier_share
        Share of the fitted points that lie beyond the threshold of `predict`.
    device
        Where to compute, 'cpu', 'cuda' or 'cuda:1'; None takes CUDA when there is one.

    Attributes
    ----------
    labels_
        (N,) category of each row, an index into `classes_`: the cluster it was put in, labeled rows
        too.
    classes_
        Known classes as given, ascending, then 'novel-001' … by falling size; such a name that is a
        known class is left out. A known class that no cluster matches keeps its place and has no
        members.
    n_clusters_
        Number of clusters, given or estimated.
    interval_
        The two ends of the range it likely lies in, with a chance of 80 %; None where it was given.
    curve_
        What labeled rows say about each number of clusters (`Curve`); None where it was given.
    rule_
        Which rule decided it: 'balance', 'median' or 'gap' where labels are too few for pairs; None
        where it was given.
    shifts_
        (T + 1,) labeled accuracy after 0, 1 … T shifts; NaN without labels.
    n_shifts_
        After how many shifts the result was taken.
    linkage_method_
        How clusters were joined in the end, 'ward' or 'average'.
    tree_
        The `Tree` that was cut.
    confidence_
        (N,) share of the k nearest rows that are in the same category; unlike a run's `confidence`
        not calibrated.
    outlier_score_
        (N,) 1 - mean cosine to the k nearest rows: near 0 among similar rows, large far from all.
    threshold_
        Outlier score above which `predict` answers -1; at least 5e-7, what rounding to float32 may
        cost.

    Examples
    --------
    >>> X = [[1.0, 0.0], [1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.1, 1.0], [0.0, 0.9]]
    >>> model = MeanShiftClustering(n_clusters=2, n_neighbors=2).fit(X, ["cat"] + 5 * [None])
    >>> model.labels_, model.classes_.tolist()
    (array([0, 0, 0, 1, 1, 1]), ['cat', 'novel-001'])
    """

    def __init__(
        self,
        n_clusters: int | tuple[int, int] | None = None,
        *,
        n_neighbors: int = 8,
        alpha: float = 0.5,
        kernel: Literal["knn", "uniform", "gaussian"] = "knn",
        max_shifts: int = 20,
        rule: str = DEFAULT_RULE,
        estimate_shifts: int = 1,
        max_clusters: int | None = None,
        must_link: bool = True,
        try_average: bool = True,
        split_mixtures: bool = True,
        outlier_share: float = 0.01,
        device: str | torch.device | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.kernel = kernel
        self.max_shifts = max_shifts
        self.rule = rule
        self.estimate_shifts = estimate_shifts
        self.max_clusters = max_clusters
        self.must_link = must_link
        self.try_average = try_average
        self.split_mixtures = split_mixtures
        self.outlier_share = outlier_share
        self.device = device

    def fit(self, X: ArrayLike, y: Labels = None) -> Self:
        """Cluster the rows of X.

        Labels are used to number the known classes, to stop shifting, with `must_link` to link the
        rows of a class, with `try_average` to choose the linkage and, where `n_clusters` is None,
        to estimate it; nothing else is read from `y`.

        Parameters
        ----------
        X
            (N, D) embeddings. Rows are scaled to length 1; in whole numbers rows of zeros become
            (1, …, 1), with a warning.
        y
            (N,) whole numbers or names of the labeled rows; None: nothing is labeled. Unlabeled is
            -1, None, NaN, NA or the empty string, as in the files that `shoal cluster` reads, and
            so are the texts '-1', 'nan', 'unlabeled' and 'unknown'. Other numbers below 0 and
            fractions are refused; True and False are the names 'True' and 'False', and the text
            '3.0' is '3'.

        Returns
        -------
        Self
            The same, fitted.
        """
        n_clusters, settings = self._settings()
        rows = self._rows(X, min_rows=2)
        known, labels = encode_labels(y, len(rows))
        inference = infer(rows, labels, n_clusters, settings, device=choose_device(self.device))
        # Wherever it was fitted, it can be loaded on any machine.
        self._points = inference.first.points.cpu().numpy()
        self.labels_, n_novel = number_clusters(inference.labels, labels, len(known), self._points)
        names = category_names(known, n_novel)
        self.classes_ = np.empty(len(names), dtype=object)
        self.classes_[:] = names
        self.n_clusters_ = inference.n_clusters
        estimate = inference.estimate
        self.interval_ = estimate and estimate.interval
        self.curve_ = estimate and estimate.curve
        self.rule_ = estimate and estimate.rule
        self.shifts_ = np.array(inference.accuracies)
        self.n_shifts_ = inference.n_shifts
        self.linkage_method_ = inference.linkage_method
        self.tree_ = inference.tree
        # What `threshold_` belongs to, whatever is set later.
        self._n_neighbors = int(self.n_neighbors)
        lists = inference.first.neighbors
        self.confidence_: Floats = same_category_share(lists, self.labels_, self.labels_)
        self.outlier_score_: Floats = outlier_scores(lists)
        self.threshold_ = max(
            float(np.quantile(self.outlier_score_, 1 - self.outlier_share)), ROUNDING
        )
        return self

    def fit_predict(self, X: ArrayLike, y: Labels = None) -> Ints:
        """Fit and return `labels_`; unlike in other clusterers `y` is used.

        Parameters
        ----------
        X
            (N, D) embeddings.
        y
            (N,) labels, as in `fit`.

        Returns
        -------
        Ints
            (N,) the category of each row, an index into `classes_`.
        """
        return self.fit(X, y).labels_

    def predict(self, X: ArrayLike) -> Ints:
        """Put new rows into the categories found.

        A row joins the category most common among its k nearest fitted rows, the nearest deciding
        ties. A row whose outlier score exceeds `threshold_` is farther from them than all but
        `outlier_share` of the fitted rows were from each other, and gets -1. No category is ever
        added or changed.

        Parameters
        ----------
        X
            (M, D) embeddings of other images. In whole numbers rows of zeros become (1, …, 1), with
            a warning.

        Returns
        -------
        Ints
            (M,) indices into `classes_`, -1 where none may fit.
        """
        check_is_fitted(self)
        rows = self._rows(X, is_fitted=True)
        fitted = torch.from_numpy(self._points).to(choose_device(self.device))
        points = unit_points(rows, device=fitted.device, min_rows=1).to(fitted.dtype)
        lists = k_nearest(points, fitted, min(self._n_neighbors, len(fitted)))
        return np.where(
            outlier_scores(lists) > self.threshold_, UNLABELED, vote(lists, self.labels_)
        )

    def _rows(self, X: ArrayLike, *, min_rows: int = 1, is_fitted: bool = False) -> Floats:
        """X as scikit-learn checks it; rows that are not finite are left to `unit_points`, which
        names them.

        Rows of zeros pass where whole numbers were given: no counts at all prefer no column over
        another. In float embeddings they mean that something broke, and are refused. Of whole
        numbers scikit-learn's checks expect that they are taken.
        """
        rows: Floats = validate_data(
            self,
            X,
            reset=not is_fitted,
            dtype=["float64", "float32"],
            ensure_all_finite=False,
            ensure_min_samples=min_rows,
        )
        is_zero = np.asarray(~rows.any(axis=1))  # (N,)
        # Lists and data frames of whole numbers too.
        if is_zero.any() and np.asarray(X).dtype.kind in "iu":
            rows[is_zero] = 1  # a copy: whole numbers were just converted
            warnings.warn(
                f"X: only zeros in {name_rows(is_zero)}, so no direction; taken for (1, …, 1), "
                "which prefers no column; remove them if they are no counts",
                UserWarning,
                stacklevel=3,  # whoever called fit or predict
            )
        return rows

    def _settings(self) -> tuple[int | None, InferenceSettings]:
        """The number of clusters, where it is one, and the other parameters, checked before any row
        is looked at."""
        given: object = self.n_clusters
        if isinstance(given, str):  # which is what commands take
            as_count(given, name="n_clusters")
        n_clusters, numbers = read_n_clusters(given)
        if numbers is not None and self.max_clusters is not None:
            raise UsageError(
                f"max_clusters: found {self.max_clusters} with a range of n_clusters; leave it out"
            )
        if not 0 <= as_number(self.outlier_share, name="outlier_share") < 1:
            raise UsageError(
                f"outlier_share: found {self.outlier_share}, expected a number in [0, 1)"
            )
        least, most = numbers or (None, self.max_clusters)
        moves = ShiftSettings(kernel=self.kernel, n_neighbors=self.n_neighbors, alpha=self.alpha)
        settings = InferenceSettings(
            shift=moves,
            max_shifts=self.max_shifts,
            rule=self.rule,
            estimate_shifts=self.estimate_shifts,
            min_clusters=least,
            max_clusters=most,
            must_link=self.must_link,
            try_average=self.try_average,
            split_mixtures=self.split_mixtures,
        )
        return n_clusters, settings


class WardClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Cut the exact Ward tree of the rows into a given number of clusters.

    Parameters
    ----------
    n_clusters
        How many clusters, at most the number of rows.
    device
        Where to compute, 'cpu', 'cuda' or 'cuda:1'; None takes CUDA when there is one.
    memory
        Bytes for the block of the scan; None takes a share of what is free.

    Attributes
    ----------
    labels_
        (N,) cluster of each row, numbered by each cluster's smallest row.
    tree_
        The whole `Tree`; `tree_.cut(k)` gives any other cut at once.
    children_
        (N-1, 2) the two nodes of each merge.
    distances_
        (N-1,) the height of each merge.
    n_leaves_
        N.
    n_features_in_
        The number of columns.

    Examples
    --------
    >>> WardClustering(n_clusters=2).fit_predict([[0.0], [0.1], [5.0]])
    array([0, 0, 1])
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.device = device
        self.memory = memory

    def fit(self, X: ArrayLike, y: Labels = None) -> Self:
        """Grow the tree of the rows and cut it.

        Parameters
        ----------
        X
            (N, D) rows.
        y
            Ignored; scikit-learn's pipelines pass it.

        Returns
        -------
        Self
            The same, fitted.
        """
        as_count(self.n_clusters, name="n_clusters")
        if self.memory is not None:
            as_count(self.memory, name="memory")
        # Rows that are not finite are left to `ward_linkage`, which names them.
        rows = validate_data(self, X, dtype=["float64", "float32"], ensure_all_finite=False)
        self.tree_ = Tree(ward_linkage(rows, device=self.device, memory=self.memory))
        self.labels_: Ints = self.tree_.cut(self.n_clusters)
        self.children_: Ints = self.tree_.linkage[:, :2].astype("int64")
        self.distances_: Floats = self.tree_.heights
        self.n_leaves_ = self.tree_.n_leaves
        return self


def encode_labels(y: Labels, n_rows: int) -> tuple[list[int | str], Ints]:
    """Number the classes of `y` in ascending order: the classes (C,) and labels (N,) with -1 for
    unlabeled.

    Unlabeled is what it is in files too (`as_class`): -1, None, NaN, NA, blank text, '-1', 'nan',
    'unlabeled' and 'unknown'.
    """
    if y is None:
        return [], np.full(n_rows, UNLABELED)
    # A list would be turned into one type by numpy, with numbers as text.
    given = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    if given.shape != (n_rows,):
        raise DataError(f"y: found shape {given.shape}, expected ({n_rows},), one label per row")
    unlabeled = fold_unlabeled()
    values = [as_class(value, unlabeled) for value in given.tolist()]
    named = [value for value in values if value is not None]
    kinds = {type(value) for value in named}
    if len(kinds) > 1 or not kinds <= {int, str}:
        raise DataError(
            "y: expected whole numbers or names, all labels written the same way, with -1 or None "
            "for unlabeled"
        )
    classes = sort_classes(set(named))
    number = {value: index for index, value in enumerate(classes)} | {None: UNLABELED}
    return classes, np.array([number[value] for value in values], dtype=np.int64)
