"""Mean-shift and Ward clustering of precomputed embeddings as scikit-learn estimators.

Shapes: N images, D columns, k neighbors, C known classes.
"""

import warnings
from collections.abc import Sequence
from typing import Self

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
    as_number,
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
from shoal.device import AnyDevice, choose_device
from shoal.errors import DataError, UsageError

# Labels in the form that `fit` expects: names or numbers
Labels = Sequence[object] | NDArray[np.generic] | None

# Smallest threshold of outlier scores: about the error of a cosine of float32 rows
ROUNDING = 4 * float(np.finfo(np.float32).eps)


class MeanShiftClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Discover known and novel categories in partly labeled embeddings (CMS paper, Algorithm 1).

    Rows are scaled to length 1. A row of zeros has no direction and raises an error; in a matrix of
    integers (counts) it is replaced by (1, …, 1), with a warning that names the rows.

    Parameters
    ----------
    n_clusters
        Number of clusters, at most the number of distinct rows. None estimates it from the labels,
        up to the larger of 1,000 and ten times the number of known classes; a range such as
        (30, 50) estimates it within that range.
    n_neighbors
        Number of nearest neighbors that a point moves toward, excluding itself.
    alpha
        Weight of the mean of these neighbors; 0 leaves the points unchanged.
    max_shifts
        Maximum number of shifts; they stop earlier when labeled accuracy no longer rises.
    rule
        How the number of clusters is estimated: 'pairs', or 'paper' for section 4.3.
    estimate_shifts
        Number of shifts before K is estimated; the CMS paper's estimate is rule='paper' with 0
        shifts.
    must_link
        Whether the variance within known classes is reduced, the labeled rows of each known class
        start as one cluster, and no cluster holds two classes; False in the CMS paper. Turn it off
        for embeddings that were trained with these labels.
    try_average
        Whether clusters are joined by average linkage if it is more accurate on the labels than
        Ward's; False in the CMS paper.
    split_mixtures
        Whether a cluster of labeled rows that likely holds a novel category is split, if the
        number of clusters is estimated; False in the CMS paper.
    outlier_share
        Share of the fitted rows whose outlier score is above `threshold_`.
    device
        'cpu', 'cuda' or 'cuda:1'; None takes CUDA if there is a GPU.

    Attributes
    ----------
    labels_
        (N,) category of each row, labeled ones included, an index into `classes_`.
    classes_
        Known classes, ascending, then 'novel-001' … by decreasing size, skipping names of known
        classes. A known class without a matching cluster is empty.
    n_clusters_
        Number of clusters, given or estimated.
    interval_
        80 % interval of `n_clusters_`, (low, high); None if `n_clusters` was a single number.
    curve_
        Labeled accuracy and other statistics of each number of clusters (`Curve`); None if
        `n_clusters` was a single number.
    rule_
        The rule used: 'pairs' or 'paper'; 'balance', 'median' or 'gap' if there are too few labels
        for pairs; None if `n_clusters` was a single number.
    shifts_
        (T + 1,) labeled accuracy after 0, 1 … T shifts; NaN without labels.
    n_shifts_
        The number of shifts of the result.
    linkage_method_
        How clusters were joined, 'ward' or 'average'.
    tree_
        The `Tree` that was cut.
    confidence_
        (N,) share of the k nearest rows that are in the same category; not calibrated, unlike the
        `confidence` of a run.
    outlier_score_
        (N,) 1 - mean cosine to the k nearest rows: near 0 among similar rows.
    threshold_
        Outlier score above which `predict` returns -1; at least 5e-7, the rounding error of a
        float32 cosine.

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
        max_shifts: int = 20,
        rule: str = DEFAULT_RULE,
        estimate_shifts: int = 1,
        must_link: bool = True,
        try_average: bool = True,
        split_mixtures: bool = True,
        outlier_share: float = 0.01,
        device: AnyDevice = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.max_shifts = max_shifts
        self.rule = rule
        self.estimate_shifts = estimate_shifts
        self.must_link = must_link
        self.try_average = try_average
        self.split_mixtures = split_mixtures
        self.outlier_share = outlier_share
        self.device = device

    def fit(self, X: ArrayLike, y: Labels = None) -> Self:
        """Cluster the rows of X.

        Labels define the known classes, stop the shifts, link the rows of a class (`must_link`),
        choose the linkage (`try_average`) and estimate `n_clusters` if it is None.

        Parameters
        ----------
        X
            (N, D) embeddings. In a matrix of integers, rows of zeros become (1, …, 1), with a
            warning.
        y
            (N,) integers or names of the labeled rows; None: no row is labeled. Unlabeled is -1,
            None, NaN, NA, the empty string, and the strings '-1', 'nan', 'unlabeled' and 'unknown'.
            Other negative numbers and fractions raise an error. True and False are the names 'True'
            and 'False', and the string '3.0' is '3'.

        Returns
        -------
        Self
            The fitted estimator.
        """
        n_clusters, settings = self._settings()
        rows = self._rows(X, min_rows=2)
        known, labels = encode_labels(y, len(rows))
        points = unit_points(rows, device=choose_device(self.device))
        inference = infer(points, labels, n_clusters, settings, is_unit=True)
        # numpy arrays, so that an estimator fitted on a GPU can be loaded anywhere.
        self._points = inference.first.points.cpu().numpy()
        self.labels_, n_novel = number_clusters(inference.labels, labels, len(known), self._points)
        self.classes_ = np.array(category_names(known, n_novel), dtype=object)
        self.n_clusters_ = inference.n_clusters
        estimate = inference.estimate
        self.interval_ = estimate and estimate.interval
        self.curve_ = estimate and estimate.curve
        self.rule_ = estimate and estimate.rule
        self.shifts_ = np.array(inference.accuracies)
        self.n_shifts_ = inference.n_shifts
        self.linkage_method_ = inference.linkage_method
        self.tree_ = inference.tree
        # `threshold_` is valid only for this number; the parameter may be changed later.
        self._n_neighbors = int(self.n_neighbors)
        lists = inference.first.neighbors
        self.confidence_: Floats = same_category_share(lists, self.labels_, self.labels_)
        self.outlier_score_: Floats = outlier_scores(lists)
        self.threshold_ = max(
            float(np.quantile(self.outlier_score_, 1 - self.outlier_share)), ROUNDING
        )
        return self

    def fit_predict(self, X: ArrayLike, y: Labels = None) -> Ints:
        """Fit and return `labels_`; unlike in other clusterers, `y` is used.

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
        """Assign new rows to the categories.

        A row joins the most common category among its k nearest fitted rows; the nearest row breaks
        ties. A row whose outlier score is above `threshold_` gets -1: it is less similar to its k
        nearest fitted rows than all but a share `outlier_share` of the fitted rows are to theirs.
        No category is added or changed.

        Parameters
        ----------
        X
            (M, D) embeddings. In a matrix of integers, rows of zeros become (1, …, 1), with a
            warning.

        Returns
        -------
        Ints
            (M,) indices into `classes_`, -1 for outliers.
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
        """Check X as scikit-learn does; `unit_points` checks that rows are finite.

        Rows of zeros are accepted among integers, because `check_estimator` requires it: a row of
        zero counts favors no column. In floats, they mean that the encoder failed.
        """
        rows = validate_data(
            self,
            X,
            reset=not is_fitted,
            dtype=["float64", "float32"],
            ensure_all_finite=False,
            ensure_min_samples=min_rows,
        )
        is_zero = np.asarray(~rows.any(axis=1))  # (N,)
        # Lists and data frames of integers too.
        if is_zero.any() and np.asarray(X).dtype.kind in "iu":
            rows[is_zero] = 1  # a copy: the integers were converted
            warnings.warn(
                f"X: only zeros in {name_rows(is_zero)}, so no direction; taken for (1, …, 1), "
                "which prefers no column; remove them unless X holds counts",
                UserWarning,
                stacklevel=3,  # the caller of fit or predict
            )
        return rows

    def _settings(self) -> tuple[int | None, InferenceSettings]:
        """Check the parameters; return the number of clusters (None for a range) and the
        settings."""
        n_clusters, limits = read_n_clusters(self.n_clusters)
        if not 0 <= as_number(self.outlier_share, name="outlier_share") < 1:
            raise UsageError(
                f"outlier_share: found {self.outlier_share}, expected a number in [0, 1)"
            )
        least, most = limits or (None, None)
        settings = InferenceSettings(
            shift=ShiftSettings(n_neighbors=self.n_neighbors, alpha=self.alpha),
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
    """Cut the exact Ward tree of the rows into `n_clusters` clusters.

    Parameters
    ----------
    n_clusters
        Number of clusters, at most the number of rows.
    device
        'cpu', 'cuda' or 'cuda:1'; None takes CUDA if there is a GPU.

    Attributes
    ----------
    labels_
        (N,) cluster of each row, numbered by their smallest row.
    tree_
        The `Tree`; `tree_.cut(k)` gives other cuts.
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
        device: AnyDevice = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.device = device

    def fit(self, X: ArrayLike, y: Labels = None) -> Self:
        """Grow the tree of the rows and cut it.

        Parameters
        ----------
        X
            (N, D) rows.
        y
            Ignored; for scikit-learn's pipelines.

        Returns
        -------
        Self
            The fitted estimator.
        """
        # `ward_linkage` checks that rows are finite.
        rows = validate_data(self, X, dtype=["float64", "float32"], ensure_all_finite=False)
        self.tree_ = Tree(ward_linkage(rows, device=self.device))
        self.labels_: Ints = self.tree_.cut(self.n_clusters)
        return self


def encode_labels(y: Labels, n_rows: int) -> tuple[list[int | str], Ints]:
    """Return the classes (C,) of `y`, ascending, and labels (N,), -1 for unlabeled (see
    `as_class`)."""
    if y is None:
        return [], np.full(n_rows, UNLABELED)
    # As objects: numpy would turn a list of numbers and names into text.
    array = np.asarray(y, dtype=object)
    if array.shape != (n_rows,):
        raise DataError(f"y: found shape {array.shape}, expected ({n_rows},), one label per row")
    values = [as_class(value) for value in array.tolist()]
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
