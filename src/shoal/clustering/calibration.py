"""Calibrated confidence: of the assignments with confidence 0.9, nine in ten are correct.

The share of an image's neighbors in its category is overconfident, because the errors of neighbors
are correlated. Cross-validation on the labels corrects this: each fold holds out a fifth of the
labeled images of every class, and some whole classes that represent novel ones. Clusters are
matched to classes by the remaining labels, so no label is used to evaluate itself.

In a known category, an assignment is correct if the image is of the category's class. Most errors
there are images of novel classes, which have no labels. Their number is estimated from the share of
labeled images instead: a known category with fewer labels than expected for its size must contain
images of other classes. In a novel category, the confidence of an image is the share of the
category that is of the image's class.

A new image may be of a category that is not in the run. The probability that it is in the run comes
from its distance from the run's images. Unseen categories are simulated: each image is compared
only with the images of other categories. Images of seen and unseen categories are assumed to be
equally frequent.

Shapes: N images, D columns, S images in a sample, k neighbors, K categories, known ones first; H
labeled images used, M images passed to a function. In a fit, M counts the held-out images of all
folds (an image that two folds hold out counts twice).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.special import expit
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Floats, Ints, nan_to_null
from shoal.clustering.matching import match_clusters
from shoal.settings import Plain

N_FOLDS = 5

# Number of groups of classes; the jackknife leaves out one at a time
N_GROUPS = 10

# Smallest number of labeled images to calibrate on
MIN_LABELS = 20

# A change in confidence is applied only if it exceeds this many standard errors
N_STANDARD_ERRORS = 2.0

# Highest confidence of an unlabeled image without calibration
UNCHECKED_CONFIDENCE = 0.95

# Pseudo-count of the uncalibrated share, the prior of a curve, at each of its points
PRIOR_IMAGES = 4.0

# Pseudo-count of the pooled share of correct images, the prior of each known category
PRIOR_MEMBERS = 8.0

# Assumed frequency of novel classes among an image's neighbors, relative to that of other known
# classes of the same size
NOVEL_NEIGHBOR_FREQUENCY = 0.5

# Largest number of images that are compared with the other categories
MAX_SAMPLE = 2_000

BATCH_IMAGES = 256


@dataclass(frozen=True, kw_only=True)
class ReliabilityCurve:
    """Confidence as a function of the share of neighbors in the same category.

    At each of the shares 0, 1/k, …, 1, (k + 1,): the `confidence`, non-decreasing, and the weighted
    numbers of correct and of all held-out images.
    """

    confidence: Floats
    n_correct: Floats
    n_images: Floats

    def at(self, share: Floats) -> Floats:
        """Return the confidence (M,) at shares (M,), interpolated linearly."""
        return np.interp(share, np.linspace(0, 1, len(self.confidence)), self.confidence)

    def shrunk(self, weight: float) -> "ReliabilityCurve":
        """Return weight · curve + (1 - weight) · uncalibrated share."""
        share = np.linspace(0, 1, len(self.confidence))
        return replace(self, confidence=weight * self.confidence + (1 - weight) * share)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Maps the share of an image's neighbors in its category to a confidence."""

    # For unlabeled images in known categories
    known: ReliabilityCurve
    # For images in novel categories
    novel: ReliabilityCurve
    # For labeled images in known categories, which are never of a novel class
    labeled: ReliabilityCurve
    # (K,) factor on the curve `known` in each known category; NaN for novel categories
    scale: Floats
    # Estimated share of labeled images among those of known classes; None without calibration,
    # because there are too few labels or calibration varies too much between classes
    label_rate: float | None
    # Weight of the curves in known categories; the uncalibrated share has weight 1 - `weight`
    weight: float = 1.0
    # Whether it was fitted on the frozen result, because too few labels were held out from training
    is_from_frozen: bool = False

    def confidence(self, share: Floats, categories: Ints, is_labeled: Bools) -> Floats:
        """Return the confidence (M,) of images in `categories` (M,), given the `share` (M,) of
        their neighbors in the same category."""
        is_known = np.isfinite(self.scale)[categories]
        calibrated = self.known.at(share) * np.nan_to_num(self.scale)[categories]
        calibrated = np.where(is_labeled, self.labeled.at(share), calibrated)
        calibrated = np.where(is_known, calibrated, self.novel.at(share))
        weight = np.where(is_known, self.weight, float(self.label_rate is not None))
        mixed = weight * np.clip(calibrated, 0.0, 1.0) + (1 - weight) * share
        # Without calibration (weight 0), an unlabeled image is never certain.
        highest = UNCHECKED_CONFIDENCE + (1 - UNCHECKED_CONFIDENCE) * weight
        return np.where(is_labeled, mixed, np.minimum(mixed, highest))

    def for_novel(self, n_novel: int) -> "Calibration":
        """Return the calibration for a clustering with the same known categories and `n_novel`
        novel ones."""
        scale = np.concatenate([self.scale[np.isfinite(self.scale)], np.full(n_novel, np.nan)])
        return replace(self, scale=scale)

    def to_dict(self) -> Plain:
        return {"is_calibrated": self.label_rate is not None, **nan_to_null(asdict(self))}

    @classmethod
    def from_dict(cls, plain: Plain) -> "Calibration":
        curves = {}
        for name in ("known", "novel", "labeled"):
            arrays = {key: np.array(array, dtype=float) for key, array in plain[name].items()}
            curves[name] = ReliabilityCurve(**arrays)
        return cls(
            **curves,
            scale=np.array(plain["scale"], dtype=float),
            label_rate=plain["label_rate"],
            weight=plain["weight"],
            is_from_frozen=plain["is_from_frozen"],
        )


def calibrate(
    categories: Ints,
    labels: Ints,
    share: Floats,
    neighbors: Ints,
    embeddings: Floats,
    *,
    n_categories: int,
    n_known: int,
    held_out: Ints | None = None,
) -> Calibration:
    """Calibrate the confidence of assignments to `categories` (N,) with `labels` (N,), -1 for
    unlabeled.

    `share` (N,) is the share of each image's `neighbors` (N, k) in its category. `held_out` lists
    the rows whose labels were held out from training; None: all rows. Folds are assigned by digests
    of the `embeddings` (N, D), so that the order of images does not matter. The larger the
    jackknife variance of the fit over classes, the more the fit is shrunk toward the share of
    neighbors.
    """
    is_labeled = labels != UNLABELED
    if held_out is None:
        held_out = np.arange(len(labels))
    rows = held_out[is_labeled[held_out]]  # (H,)
    is_known = np.arange(n_categories) < n_known
    fitter = _Fitter(categories, labels, share, neighbors, embeddings, is_known)
    classes, class_of = np.unique(labels[rows], return_inverse=True)
    if len(rows) < MIN_LABELS or len(classes) < 2:
        return fitter.uncalibrated()

    fitted = fitter.fit(rows)
    change = fitted.confidence(share, categories, is_labeled) - share
    # The jackknife leaves out classes, not images, because the errors within a class are
    # correlated.
    group = (np.random.default_rng(1).permutation(len(classes)) % N_GROUPS)[class_of]  # (H,)
    jackknife = []
    for left_out in np.unique(group):
        other = fitter.fit(rows[group != left_out])
        jackknife.append(other.confidence(share, categories, is_labeled) - share)
    in_known = ~is_labeled & is_known[categories]
    in_novel = ~is_labeled & ~is_known[categories]
    known_weight = _shrinkage(change[in_known], [other[in_known] for other in jackknife])
    novel_weight = _shrinkage(change[in_novel], [other[in_novel] for other in jackknife])
    if known_weight == 0 and novel_weight == 0:
        return fitter.uncalibrated()
    return replace(fitted, novel=fitted.novel.shrunk(novel_weight), weight=known_weight)


def _shrinkage(change: Floats, jackknife: Sequence[Floats]) -> float:
    """Return the weight, 0 to 1, of a change (M,) in confidence, given the same change in each
    jackknife replicate."""
    if not change.sum():
        return 0.0
    means = np.array([other.mean() for other in jackknife])
    squares = float(((means - means.mean()) ** 2).sum())
    variance = (len(means) - 1) / len(means) * squares
    return max(0.0, 1 - N_STANDARD_ERRORS**2 * variance / float(change.mean()) ** 2)


@dataclass(frozen=True)
class _Fitter:
    """Fits a calibration to some of the labels of a clustered collection; `is_known` (K,)."""

    categories: Ints
    labels: Ints
    share: Floats
    neighbors: Ints
    embeddings: Floats
    is_known: Bools

    def uncalibrated(self) -> Calibration:
        """Return the calibration in which confidence is the share of neighbors."""
        none = np.zeros(0, dtype=np.int64)
        curve = self._curve(none, none, none)
        scale = np.where(self.is_known, 1.0, np.nan)
        return Calibration(
            known=curve, novel=curve, labeled=curve, scale=scale, label_rate=None, weight=0.0
        )

    def fit(self, rows: Ints) -> Calibration:
        """Return the calibration fitted to the labels of `rows` (H,) by cross-validation."""
        label_rate = estimate_label_rate(self.labels, self.neighbors, rows)
        classes, class_of = np.unique(self.labels[rows], return_inverse=True)
        class_fold = (np.random.default_rng(0).permutation(len(classes)) % N_FOLDS)[class_of]
        image_fold = _image_folds(class_of, self.embeddings[rows])  # (H,)
        # (N,) how many labels of its class each of `rows` stands for, including labels that
        # training saw; 0 for other images
        n_labels = np.array([(self.labels == label).sum() for label in classes])
        labels_per_row = np.zeros(len(self.labels))
        labels_per_row[rows] = (n_labels / np.bincount(class_of))[class_of]

        # Hold out images and whole classes together, because both kinds of errors occur together.
        folds = np.arange(N_FOLDS)[:, None]
        hides_class = class_fold == folds  # (folds, H)
        holds_out = hides_class | (image_fold == folds)  # (folds, H)
        held_out, matched = self._match(rows, holds_out, hides_class)  # (M,) each
        is_hidden = hides_class[holds_out]
        is_correct = matched == self.labels[held_out]
        is_matched = matched != UNLABELED
        weights = self._weights(is_hidden, label_rate)
        ones = np.ones(len(held_out))
        known = self._curve(held_out[is_matched], is_correct[is_matched], weights[is_matched])
        chosen = is_matched & ~is_hidden
        labeled = self._curve(held_out[chosen], is_correct[chosen], ones[chosen])
        class_share = self._class_share(held_out[~is_matched], labels_per_row, label_rate)
        novel = self._curve(held_out[~is_matched], class_share, ones[~is_matched])

        # To count the correct labels of each category, hold out images only.
        held_out, matched = self._match(rows, image_fold == folds, np.zeros_like(hides_class))
        correct = held_out[matched == self.labels[held_out]]
        n_correct = np.zeros(len(self.is_known))
        np.add.at(n_correct, self.categories[correct], labels_per_row[correct])
        shares = self._known_shares(rows, n_correct, label_rate)
        scale = shares / np.maximum(self._mean_confidence(known), 1e-9)
        return Calibration(
            known=known,
            novel=novel,
            labeled=labeled,
            scale=np.where(self.is_known, scale, np.nan),
            label_rate=label_rate,
        )

    def _match(self, rows: Ints, holds_out: Bools, hides_class: Bools) -> tuple[Ints, Ints]:
        """Return the held-out images (M,), fold by fold, and the class (M,) that the category of
        each is matched to, using only labels outside its fold; -1 for none.

        A fold holds out some of the `rows` (H,), and all labels of the classes that it hides:
        `holds_out` and `hides_class` (folds, H).
        """
        parts = []
        for is_held_out, is_hidden in zip(holds_out, hides_class, strict=True):
            held_out = rows[is_held_out]
            others = self.labels.copy()
            others[np.isin(others, others[rows[is_hidden]])] = UNLABELED
            others[held_out] = UNLABELED
            parts.append(match_clusters(others, self.categories)[self.categories[held_out]])
        return rows[holds_out.nonzero()[1]], np.concatenate(parts)

    def _weights(self, is_hidden: Bools, label_rate: float) -> Floats:
        """Return importance weights (M,) of held-out images, with mean 1, proportional to the
        number of unlabeled images that each represents: of novel classes if its class is hidden,
        else of known ones."""
        n_labeled = int((self.labels != UNLABELED).sum())
        n_hidden = max(1, int(is_hidden.sum()))
        per_known = (n_labeled / label_rate - n_labeled) / max(1, len(is_hidden) - n_hidden)
        per_novel = (len(self.labels) - n_labeled / label_rate) / n_hidden
        weights = np.where(is_hidden, per_novel, per_known)
        if not weights.any():
            return np.ones(len(is_hidden))
        return weights / weights.mean()

    def _curve(
        self, held_out: Ints, correct: Floats | Ints | Bools, weights: Floats | Ints
    ) -> ReliabilityCurve:
        """Return the isotonic fit to held-out images (M,), with the uncalibrated share as a
        prior."""
        k = self.neighbors.shape[1]
        level = np.rint(self.share[held_out] * k).astype(np.int64)
        # bincount returns integers for empty input; + 0.0 makes them floats.
        n_images = np.bincount(level, weights, minlength=k + 1) + 0.0
        n_correct = np.bincount(level, weights * correct, minlength=k + 1) + 0.0
        total = n_images + PRIOR_IMAGES
        smoothed = (n_correct + PRIOR_IMAGES * np.linspace(0, 1, k + 1)) / total
        confidence = isotonic_regression(smoothed, weights=total).x
        return ReliabilityCurve(confidence=confidence, n_correct=n_correct, n_images=n_images)

    def _class_share(self, held_out: Ints, labels_per_row: Floats, label_rate: float) -> Floats:
        """Return, for each held-out image, the estimated share (M,) of its category that is of its
        class: the labels of that class in the category over the label rate times the size of the
        category, both counts without the image itself."""
        counts = np.zeros((len(self.is_known), int(self.labels.max()) + 1))
        rows = np.flatnonzero(labels_per_row)
        np.add.at(counts, (self.categories[rows], self.labels[rows]), labels_per_row[rows])
        categories = self.categories[held_out]
        n_same = counts[categories, self.labels[held_out]] - labels_per_row[held_out]
        sizes = np.bincount(self.categories)[categories]
        return n_same / label_rate / np.maximum(sizes - 1, 1)  # may exceed 1 by chance

    def _known_shares(self, rows: Ints, n_correct: Floats, label_rate: float) -> Floats:
        """Return the share (K,) of each category's unlabeled images estimated to be of its class.

        A correct label implies (1 - label_rate) / label_rate unlabeled images of its class. Shares
        are shrunk toward the mean over all categories.
        """
        n = len(self.is_known)
        n_unlabeled = np.bincount(self.categories[self.labels == UNLABELED], minlength=n)
        expected = n_correct * (1 - label_rate) / label_rate
        has_labels = np.bincount(self.categories[rows], minlength=n) > 0
        pooled = expected[has_labels].sum() / max(1, n_unlabeled[has_labels].sum())
        pooled = float(np.clip(pooled, 0, 1))
        shares = (expected + PRIOR_MEMBERS * pooled) / (n_unlabeled + PRIOR_MEMBERS)
        return np.clip(np.where(has_labels, shares, pooled), 0, 1)

    def _mean_confidence(self, known: ReliabilityCurve) -> Floats:
        """Return the mean confidence (K,) of each category's unlabeled images, or that of all
        images for a category without unlabeled ones."""
        values = known.at(self.share)
        is_unlabeled = self.labels == UNLABELED
        categories = self.categories[is_unlabeled]
        n = len(self.is_known)
        totals = np.bincount(categories, values[is_unlabeled], minlength=n)
        counts = np.bincount(categories, minlength=n)
        return np.where(counts > 0, totals / np.maximum(counts, 1), values.mean())


def _image_folds(classes: Ints, embeddings: Floats) -> Ints:
    """Return folds (H,) that split each class evenly; members are ordered by digest."""
    digests = [hashlib.sha256(row.tobytes()).hexdigest() for row in embeddings]
    folds = np.zeros(len(digests), dtype=np.int64)
    for label in np.unique(classes):
        members = sorted(np.flatnonzero(classes == label).tolist(), key=digests.__getitem__)
        # Start at a different fold for each class: small classes would otherwise all be in fold 0.
        folds[members] = (np.arange(len(members)) + label) % N_FOLDS
    return folds


def estimate_label_rate(labels: Ints, neighbors: Ints, rows: Ints) -> float:
    """Estimate the share of labeled images among those of known classes, from the neighbors (N, k)
    of the labeled `rows` (H,).

    Let a be the share of these neighbors with the same label, b the share with another label, and L
    the number of labeled images. If novel classes were as frequent among neighbors as other known
    classes of the same size, the rate would be a / (1 - b N / L); if they never occurred, a + b.
    They are assumed to be half as frequent (`NOVEL_NEIGHBOR_FREQUENCY`).
    """
    n = len(labels)
    n_labeled = int((labels != UNLABELED).sum())
    near = labels[neighbors[rows]]  # (H, k)
    is_same = near == labels[rows][:, None]
    same_share = is_same.mean()
    other_share = (~is_same & (near != UNLABELED)).mean()
    rest = 1 - NOVEL_NEIGHBOR_FREQUENCY * other_share * n / n_labeled
    if rest <= 0:
        return 1.0
    rate = (same_share + (1 - NOVEL_NEIGHBOR_FREQUENCY) * other_share) / rest
    return float(np.clip(rate, n_labeled / n, 1.0))


def seen_probability(curve: Mapping[str, float], outlier_score: Floats) -> Floats:
    """Return the probability (M,) that images with these outlier scores (M,) are of a category in
    the run."""
    return expit(curve["intercept"] + curve["slope"] * outlier_score)


def fit_seen_probability(
    points: Tensor, categories: Ints, outlier_score: Floats, n_neighbors: int
) -> dict[str, float] | None:
    """Fit the curve of `seen_probability`, which falls, to unit rows (N, D), their categories (N,)
    and outlier scores (N,); None for a single category."""
    if len(np.unique(categories)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression  # takes a second to import

    sample = np.arange(0, len(points), -(-len(points) // MAX_SAMPLE))
    never_seen = _scores_from_others(points, categories, sample, n_neighbors)
    scores = np.concatenate([outlier_score[sample], never_seen])
    is_seen = np.repeat([1, 0], [len(sample), len(never_seen)])
    spread = max(float(scores.std()), 1e-6)
    model = LogisticRegression(class_weight="balanced").fit(scores[:, None] / spread, is_seen)
    slope = min(0.0, float(model.coef_[0, 0]) / spread)
    return {"slope": slope, "intercept": float(model.intercept_[0])}


def _scores_from_others(points: Tensor, categories: Ints, sample: Ints, n_neighbors: int) -> Floats:
    """Return outlier scores (S,) of some rows of `points` (N, D), compared only with images of
    other categories."""
    category_of = torch.from_numpy(categories).to(points.device)
    scores = []
    for start in range(0, len(sample), BATCH_IMAGES):
        rows = torch.from_numpy(sample[start : start + BATCH_IMAGES]).to(points.device)
        is_same = category_of[rows, None] == category_of
        similar = (points[rows] @ points.T).masked_fill(is_same, -torch.inf)
        nearest = similar.topk(min(n_neighbors, len(points) - 1), dim=1).values
        is_other = nearest > -torch.inf  # there may be fewer than k images of other categories
        total = nearest.where(is_other, 0).sum(dim=1)
        scores.append((1 - total / is_other.sum(dim=1)).double().cpu().numpy())
    return np.concatenate(scores)
