"""How sure an assignment is, as a share that given labels bear out: of what is said at 0.9, nine in
ten are right.

The share of an image's neighbors in its category sounds surer than it is: neighbors err together.
So labels are held back in folds: a fifth of the images of each class, then whole classes, which
stand in for novel ones. What matches clusters with classes is never evidence for itself. Only given
labels decide, and none is asked for twice.

In a known category, right means of its class. Most that is wrong there is of classes without
labels, which no held-back label shows; but where few of a category's images are labeled although
many of its class are, the others are of another class. In a novel category, right means: what share
of the category is of the image's own class.

N images, k neighbors, K categories of which the first C are known; M of J judged images are held
back.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from shoal.arrays import UNLABELED, Bools, Floats, Ints, nan_to_null
from shoal.clustering.matching import match_clusters

N_FOLDS = 5
N_GROUPS = 10
"""Groups of classes that are left out in turn, to see how far what was learned hangs on some of
them."""
MIN_LABELS = 20
"""Labeled images below which nothing is calibrated."""
N_ERRORS = 2.0
"""Standard errors that a change of confidence must exceed to count at all."""
UNCHECKED_CONFIDENCE = 0.95
"""Most that an unlabeled image is given where labels cannot check confidence."""
PRIOR_IMAGES = 4.0
"""How many images the share of neighbors itself counts for, at each of its values."""
PRIOR_MEMBERS = 8.0
"""How many images the mean of all known categories counts for in each of them."""
NEAR_UNKNOWN = 0.5
"""How often classes without labels are among an image's neighbors, beside other known classes, by
their numbers."""

CURVES = ("known", "novel", "labeled")


@dataclass(frozen=True, eq=False, kw_only=True)
class ReliabilityCurve:
    """What a share of neighbors means."""

    confidence: Floats
    """(k + 1,) at the shares 0, 1/k … 1, never falling."""
    right: Floats
    """(k + 1,) how many of the images held back there were right; with `n_images` the evidence."""
    n_images: Floats
    """(k + 1,)"""

    def at(self, share: Floats) -> Floats:
        """The confidence at shares of neighbors (M,)."""
        confidence: Floats = np.interp(
            share, np.linspace(0, 1, len(self.confidence)), self.confidence
        )
        return confidence

    def toward_share(self, weight: float) -> "ReliabilityCurve":
        """The same with `weight`, and the share itself with the rest."""
        share = np.linspace(0, 1, len(self.confidence))
        return replace(self, confidence=weight * self.confidence + (1 - weight) * share)


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """From the share of an image's neighbors in its category to its confidence."""

    known: ReliabilityCurve
    """For unlabeled images in known categories."""
    novel: ReliabilityCurve
    labeled: ReliabilityCurve
    """For labeled images in known categories, among which there are none of novel classes."""
    scale: Floats
    """(K,) factor of each category."""
    label_rate: float | None
    """Share of the images of known classes that are labeled, as neighbors of labeled images show
    it; None where labels are too few to calibrate: then confidence is the share of neighbors."""
    weight: float = 1.0
    """How much this counts in known categories; the share of neighbors itself has the rest."""
    is_of_first: bool = False
    """Whether it was learned on the first answer, because training left too few labels unseen."""

    def confidence(self, share: Floats, categories: Ints, is_labeled: Bools) -> Floats:
        """(M,) of images in `categories` (M,) with a share (M,) of neighbors there."""
        n_known = int(np.isfinite(self.scale).sum())
        is_known = categories < n_known
        by_curve = self.known.at(share) * np.nan_to_num(self.scale)[categories]
        by_curve = np.where(is_labeled, self.labeled.at(share), by_curve)
        by_curve = np.where(is_known, by_curve, self.novel.at(share))
        weight = np.where(is_known, self.weight, float(self.label_rate is not None))
        weighted = weight * np.clip(by_curve, 0.0, 1.0) + (1 - weight) * share
        # What labels have not checked is never certain.
        most = UNCHECKED_CONFIDENCE + (1 - UNCHECKED_CONFIDENCE) * weight
        confidence: Floats = np.where(is_labeled, weighted, np.minimum(weighted, most))
        return confidence

    def for_novel(self, n_novel: int) -> "Calibration":
        """The same for another clustering, with as many known categories and `n_novel` others."""
        scale = np.concatenate([self.scale[np.isfinite(self.scale)], np.full(n_novel, np.nan)])
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, object]:
        """The record of it, for calibration.json."""
        curves = {}
        for name in CURVES:
            values = vars(getattr(self, name))
            curves[name] = {key: array.tolist() for key, array in values.items()}
        return {
            "is_calibrated": self.label_rate is not None,
            "label_rate": self.label_rate,
            "weight": self.weight,
            "is_of_first": self.is_of_first,
            **curves,
            "scale": nan_to_null(self.scale.tolist()),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Calibration":
        """Undo `to_dict`."""
        curves = {}
        for name in CURVES:
            values = {key: np.array(each, dtype=float) for key, each in plain[name].items()}
            curves[name] = ReliabilityCurve(**values)
        return cls(
            **curves,
            scale=np.array(plain["scale"], dtype=float),
            label_rate=plain.get("label_rate"),
            weight=plain.get("weight", 1.0),
            is_of_first=plain.get("is_of_first", False),
        )


def calibrate(
    categories: Ints,
    labels: Ints,
    share: Floats,
    neighbors: Ints,
    rows: Floats,
    *,
    n_categories: int,
    n_known: int,
    unseen: Ints | None = None,
) -> Calibration:
    """Learn what `share` (N,) of the `neighbors` (N, k) in an image's category means, from labels
    (N,), -1 for none.

    `unseen` are the labeled images whose labels no training saw; all of them if not given. Their
    `rows` (N, any) decide on folds, so that the order of images does not. What would be another
    without some of the classes counts less.
    """
    labeled = labels != UNLABELED
    if unseen is None:
        unseen = np.arange(len(labels))
    judged = unseen[labeled[unseen]]
    is_known = np.arange(n_categories) < n_known
    task = _Task(categories, labels, share, neighbors, row_digests(rows), is_known)
    classes, at = np.unique(labels[judged], return_inverse=True)
    if len(judged) < MIN_LABELS or len(classes) < 2:
        return task.plain()
    learned = task.learn(judged)
    change = learned.confidence(share, categories, labeled) - share
    group = (np.random.default_rng(1).permutation(len(classes)) % N_GROUPS)[at]  # (J,)
    others = [
        task.learn(judged[group != one]).confidence(share, categories, labeled) - share
        for one in np.unique(group)
    ]
    trust = []
    for chosen in (~labeled & is_known[categories], ~labeled & ~is_known[categories]):
        trust.append(_trust(change[chosen], [other[chosen] for other in others]))
    if not any(trust):
        return task.plain()
    return replace(learned, novel=learned.novel.toward_share(trust[1]), weight=trust[0])


def row_digests(rows: Floats) -> NDArray[np.str_]:
    """(N,) a checksum of each row."""
    return np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in rows])


def _trust(change: Floats, others: Sequence[Floats]) -> float:
    """How far to believe in a change (M,) of confidence: less the more it is another without some
    of the classes."""
    if not change.sum():
        return 0.0
    of_others = np.array([other.mean() for other in others])
    squares = float(((of_others - of_others.mean()) ** 2).sum())
    error = (len(of_others) - 1) / len(of_others) * squares  # squared
    return max(0.0, 1 - N_ERRORS**2 * error / float(change.mean()) ** 2)


@dataclass(frozen=True, eq=False)
class _Task:
    """Images in categories of which some are labeled, and what the shares of their neighbors
    are."""

    categories: Ints
    labels: Ints
    share: Floats
    neighbors: Ints
    digests: NDArray[np.str_]
    is_known: Bools
    """(K,)"""

    def plain(self) -> Calibration:
        """Confidence is the share of neighbors."""
        none = np.zeros(0)
        curve = self._fit(np.zeros(0, dtype=np.int64), none, none)
        scale = np.where(self.is_known, 1.0, np.nan)
        return Calibration(
            known=curve, novel=curve, labeled=curve, scale=scale, label_rate=None, weight=0.0
        )

    def learn(self, judged: Ints) -> Calibration:
        """What the labels of the `judged` images (J,) say, folds of them held back in turn."""
        labels = self.labels
        categories = self.categories
        rate = estimate_label_rate(labels, self.neighbors, judged, self.digests)
        classes, of = np.unique(labels[judged], return_inverse=True)
        n_given = np.array([(labels == one).sum() for one in classes])
        stands_for = (n_given / np.bincount(of))[of]  # (J,) labels that each judged one stands for
        class_fold = (np.random.default_rng(0).permutation(len(classes)) % N_FOLDS)[of]  # (J,)
        image_fold = _image_folds(of, self.digests[judged].tolist())  # (J,)
        n_right = np.zeros(len(self.is_known))
        parts = []
        for fold in range(N_FOLDS):
            is_hidden = class_fold == fold
            held = is_hidden | (image_fold == fold)
            hidden = np.unique(labels[judged[is_hidden]])
            parts.append((judged[held], self._match(judged[held], hidden), is_hidden[held]))
            held = image_fold == fold
            at = judged[held]
            is_right = self._match(at, hidden[:0]) == labels[at]
            np.add.at(n_right, categories[at][is_right], stands_for[held][is_right])
        at, matched, is_hidden = (np.concatenate(part) for part in zip(*parts, strict=True))
        is_right = matched == labels[at]
        is_matched = matched != UNLABELED
        weights = self._weights(is_hidden, rate)
        ones = np.ones(len(at))
        known = self._fit(at[is_matched], is_right[is_matched], weights[is_matched])
        chosen = is_matched & ~is_hidden
        labeled = self._fit(at[chosen], is_right[chosen], ones[chosen])
        alike = self._own_class_share(judged, stands_for, at[~is_matched], rate)
        novel = self._fit(at[~is_matched], alike, ones[~is_matched])
        scale = self._known_shares(judged, n_right, rate) / np.maximum(self._base(known), 1e-9)
        scale = np.where(self.is_known, scale, np.nan)
        return Calibration(known=known, novel=novel, labeled=labeled, scale=scale, label_rate=rate)

    def _match(self, held: Ints, hidden: Ints) -> Ints:
        """(M,) the class of the category of each held image, by the other labels, none of `hidden`
        classes; -1 where it has none."""
        rest = self.labels.copy()
        rest[np.isin(rest, hidden)] = UNLABELED
        rest[held] = UNLABELED
        return match_clusters(rest, self.categories)[self.categories[held]]

    def _weights(self, is_hidden: Bools, rate: float) -> Floats:
        """(M,) how many unlabeled images each held-back one stands for: of known classes, or of
        novel ones if hidden."""
        n_labeled = int((self.labels != UNLABELED).sum())
        n_hidden = max(1, int(is_hidden.sum()))
        of_known = (n_labeled / rate - n_labeled) / max(1, len(is_hidden) - n_hidden)
        of_novel = (len(self.labels) - n_labeled / rate) / n_hidden
        weights = np.where(is_hidden, of_novel, of_known)
        if not weights.sum() > 0:
            weights = np.ones(len(is_hidden))
        return np.asarray(weights / weights.mean())

    def _fit(self, at: Ints, right: Floats | Bools, weights: Floats) -> ReliabilityCurve:
        """The curve nearest to the evidence and, where there is little, to the share itself."""
        k = self.neighbors.shape[1]
        level = np.rint(self.share[at] * k).astype(np.int64)
        n_images = np.bincount(level, weights, minlength=k + 1) + 0.0
        n_right = np.bincount(level, weights * right, minlength=k + 1) + 0.0
        worth = n_images + PRIOR_IMAGES
        smoothed = (n_right + PRIOR_IMAGES * np.linspace(0, 1, k + 1)) / worth
        rising = isotonic_regression(smoothed, weights=worth).x  # within 0 and 1 as well
        return ReliabilityCurve(confidence=rising, right=n_right, n_images=n_images)

    def _own_class_share(self, judged: Ints, stands_for: Floats, at: Ints, rate: float) -> Floats:
        """(M,) which share of its category is of an image's own class: its labeled ones, by the
        rate of labels."""
        counts = np.zeros((len(self.is_known), int(self.labels.max()) + 1))
        np.add.at(counts, (self.categories[judged], self.labels[judged]), stands_for)
        own = np.zeros(len(self.labels))
        own[judged] = stands_for
        sizes = np.bincount(self.categories)[self.categories[at]]
        alike = counts[self.categories[at], self.labels[at]] - own[at]
        return alike / rate / np.maximum(sizes - 1, 1)  # may pass 1 by chance; the curve does not

    def _known_shares(self, judged: Ints, n_right: Floats, rate: float) -> Floats:
        """(K,) which share of a category's unlabeled images is of its class: as many per labeled
        one as elsewhere."""
        n = len(self.is_known)
        unlabeled = np.bincount(self.categories[self.labels == UNLABELED], minlength=n)
        expected = n_right * (1 - rate) / rate
        is_seen = np.bincount(self.categories[judged], minlength=n) > 0
        pooled = float(np.clip(expected[is_seen].sum() / max(1, unlabeled[is_seen].sum()), 0, 1))
        shares = (expected + PRIOR_MEMBERS * pooled) / (unlabeled + PRIOR_MEMBERS)
        return np.clip(np.where(is_seen, shares, pooled), 0, 1)

    def _base(self, known: ReliabilityCurve) -> Floats:
        """(K,) the mean confidence of the unlabeled images of each category; of all images where it
        has none."""
        values = known.at(self.share)
        chosen = self.labels == UNLABELED
        n = len(self.is_known)
        totals = np.bincount(self.categories[chosen], values[chosen], minlength=n)
        counts = np.bincount(self.categories[chosen], minlength=n)
        return np.where(counts > 0, totals / np.maximum(counts, 1), float(values.mean()))


def _image_folds(classes: Ints, digests: Sequence[str]) -> Ints:
    """(J,) folds that share each class evenly, by the digest of each row."""
    folds = np.zeros(len(digests), dtype=np.int64)
    for one in np.unique(classes):
        members = sorted(np.flatnonzero(classes == one).tolist(), key=digests.__getitem__)
        folds[members] = (np.arange(len(members)) + one) % N_FOLDS
    return folds


def estimate_label_rate(
    labels: Ints, neighbors: Ints, judged: Ints, digests: NDArray[np.str_]
) -> float:
    """The share of the images of known classes that are labeled, from the neighbors (N, k) of
    labeled images.

    Of these, a share a is labeled alike, b otherwise. Were classes without labels as often
    neighbors of an image as other known ones are, by their number, the rate would be a / (1 - b N /
    L), with L of N images labeled; were they never, it would be a + b. They are taken to be half as
    often. Of copies, equal `digests` (N,), any may be the neighbor: each counts by its share, so
    that their order does not matter.
    """
    n = len(labels)
    n_labeled = int((labels != UNLABELED).sum())
    _, copies, sizes = np.unique(digests, return_inverse=True, return_counts=True)  # (N,) and (G,)
    near = copies[neighbors[judged]]  # (J, k)
    own = near == copies[judged][:, None]
    others = sizes[near] - own
    width = int(labels.max()) + 2
    pairs, counts = np.unique(copies * width + labels + 1, return_counts=True)

    def n_copies(label: Ints) -> Ints:
        """(J, k) how many copies of each neighbor have a label, one per row (J, 1)."""
        wanted = near * width + label + 1
        at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return np.where(pairs[at] == wanted, counts[at], 0)

    same = (n_copies(labels[judged][:, None]) - own) / others
    unlabeled = n_copies(np.full((1, 1), UNLABELED)) / others
    alike = math.fsum(same.flat) / same.size
    otherwise = math.fsum((1 - same - unlabeled).flat) / same.size
    rest = 1 - NEAR_UNKNOWN * otherwise * n / n_labeled
    if rest <= 0:
        return 1.0
    rate = (alike + (1 - NEAR_UNKNOWN) * otherwise) / rest
    return float(np.clip(rate, n_labeled / n, 1.0))
