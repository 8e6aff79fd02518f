"""How sure an assignment is, as a share that given labels bear out: of what is said at 0.9, nine in ten are right.

The share of an image's neighbors in its category sounds surer than it is: neighbors err together. So labels are held
back in folds: a fifth of the images of each class, then whole classes, which stand in for novel ones. What matches
clusters with classes is never evidence for itself. Only given labels decide, and none is asked for twice.

In a known category, right means of its class. Most that is wrong there is of classes without labels, which no held-back
label shows; but where few of a category's images are labeled although many of its class are, the others are of another
class. In a novel category, right means: what share of the category is of the image's own class.

N images, k neighbors, K categories of which the first C are known.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from shoal.arrays import UNLABELED, Bools, Floats, Ints, nan_to_null
from shoal.clustering.held_back import Folds, estimate_label_rate

N_GROUPS = 10
"""Groups of classes that are left out in turn, to see how far what was learned hangs on some of them."""
MIN_LABELS = 20
"""Labeled images below which nothing is calibrated."""
N_ERRORS = 2.0
"""Standard errors that a change of confidence must exceed to count at all."""
UNCHECKED_CONFIDENCE = 0.95
"""Most that an unlabeled image is given where labels cannot check confidence."""
PRIOR_IMAGES = 4.0
"""How many images the share of neighbors itself counts for, at each of its values."""

CURVE = ("confidence", "right", "n_images")
"""The fields of a curve."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReliabilityCurve:
    """What a share of neighbors means."""

    confidence: Floats
    """(k + 1,) at the shares 0, 1/k … 1, never falling."""
    right: Floats
    """(k + 1,) how many of the images held back there were right; with `n_images` the evidence itself."""
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
    """Share of the images of known classes that are labeled, as neighbors of labeled images show it; None where labels
    are too few to calibrate: then confidence is the share of neighbors."""
    weight: float = 1.0
    """How much this counts in known categories; the share of neighbors itself has the rest."""
    is_of_first: bool = False
    """Whether it was learned on the first answer, because training left too few labels unseen."""

    def confidence(self, share: Floats, categories: Ints, is_labeled: Bools) -> Floats:
        """(M,) of images in `categories` (M,) with a share (M,) of neighbors there."""
        n_known = int(np.isfinite(self.scale).sum())
        is_known = categories < n_known
        known = self.known.at(share) * np.nan_to_num(self.scale)[categories]
        by_curve = np.where(
            is_known, np.where(is_labeled, self.labeled.at(share), known), self.novel.at(share)
        )
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

    def to_dict(self) -> dict[str, Any]:
        """The record of it, for calibration.json."""
        curves = {name: getattr(self, name) for name in ("known", "novel", "labeled")}
        return {
            "is_calibrated": self.label_rate is not None,
            "label_rate": self.label_rate,
            "weight": self.weight,
            "is_of_first": self.is_of_first,
            **{
                name: {key: getattr(curve, key).tolist() for key in CURVE}
                for name, curve in curves.items()
            },
            "scale": nan_to_null(self.scale.tolist()),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Calibration":
        """Undo `to_dict`."""
        curves: dict[str, Any] = {
            name: ReliabilityCurve(
                **{key: np.array(plain[name][key], dtype=float) for key in CURVE}
            )
            for name in ("known", "novel", "labeled")
        }
        scale = np.array(plain["scale"], dtype=float)
        weight = plain.get("weight")
        about: dict[str, Any] = {
            "label_rate": plain.get("label_rate"),
            "is_of_first": bool(plain.get("is_of_first")),
        }
        return cls(**curves, scale=scale, weight=1.0 if weight is None else weight, **about)


def calibrate(
    categories: Ints,
    labels: Ints,
    share: Floats,
    neighbors: Ints,
    rows: NDArray[Any],
    *,
    n_categories: int,
    n_known: int,
    unseen: Ints | None = None,
) -> Calibration:
    """Learn what `share` (N,) of the `neighbors` (N, k) in an image's category means, from labels (N,), -1 for none.

    `unseen` are the labeled images whose labels no training saw; all of them if not given. Their `rows` (N, any) decide
    on folds, so that the order of images does not. What would be another without some of the classes counts less.
    """
    labeled = labels != UNLABELED
    judged = np.flatnonzero(labeled) if unseen is None else unseen[labeled[unseen]]
    task = _Task(
        categories, labels, share, neighbors, np.array(_digests(rows)), n_categories, n_known
    )
    if len(judged) < MIN_LABELS or len(np.unique(labels[judged])) < 2:
        return task.plain
    learned = task.learn(judged)
    free = ~labeled
    said = learned.confidence(share, categories, labeled)
    others = [
        task.learn(part).confidence(share, categories, labeled)
        for part in _without_groups(labels, judged)
    ]
    known, novel = (
        _trust(said[rows] - share[rows], [other[rows] - share[rows] for other in others])
        for rows in (free & (categories < n_known), free & (categories >= n_known))
    )
    if not known and not novel:
        return task.plain
    return replace(learned, novel=learned.novel.toward_share(novel), weight=known)


def _without_groups(labels: Ints, judged: Ints) -> list[Ints]:
    """What is left of the judged images without one group of classes, for each group."""
    classes, at = np.unique(labels[judged], return_inverse=True)
    group = (np.random.default_rng(1).permutation(len(classes)) % N_GROUPS)[at]
    return [judged[group != one] for one in np.unique(group)]


def _trust(change: Floats, others: Sequence[Floats]) -> float:
    """How far to believe in a change (M,) of confidence: less the more it is another without some of the classes."""
    if not len(change):
        return 0.0
    mean = float(change.mean())
    of_others = np.array([other.mean() for other in others])
    error = (
        (len(of_others) - 1) / len(of_others) * float(((of_others - of_others.mean()) ** 2).sum())
    )  # squared
    return max(0.0, 1 - N_ERRORS**2 * error / mean**2) if mean else 0.0


@dataclass(frozen=True, eq=False)
class _Task:
    """Images in categories of which some are labeled, and what the shares of their neighbors are."""

    categories: Ints
    labels: Ints
    share: Floats
    neighbors: Ints
    digests: NDArray[np.str_]
    """(N,) of the images' rows."""
    n_categories: int
    n_known: int

    @property
    def plain(self) -> Calibration:
        """Confidence is the share of neighbors."""
        curve = _fit(np.zeros(0), np.zeros(0), np.zeros(0), self.neighbors.shape[1])
        return Calibration(
            known=curve,
            novel=curve,
            labeled=curve,
            scale=self._scale(1.0),
            label_rate=None,
            weight=0.0,
        )

    def learn(self, judged: Ints) -> Calibration:
        """What the labels of the `judged` images say, folds of them held back in turn."""
        share = self.share
        labeled = self.labels != UNLABELED
        rate = estimate_label_rate(self.labels, self.neighbors, judged, self.digests)
        folds = Folds(self.categories, self.labels, judged, self.digests)
        at, right, is_hidden, is_matched = (
            np.concatenate(part) for part in zip(*folds.passes(), strict=True)
        )
        weights = _weights(is_hidden, len(share), int(labeled.sum()), rate)
        of_known = is_matched
        of_labeled = is_matched & ~is_hidden
        of_novel = ~is_matched
        pairs = folds.own_class_share(at, rate)
        ones = np.ones(len(at))
        known, of_given, novel = (
            _fit(share[at][part], true[part], counts[part], self.neighbors.shape[1])
            for part, true, counts in (
                (of_known, right, weights),
                (of_labeled, right, ones),
                (of_novel, pairs, ones),
            )
        )
        base = _mean_by(known.at(share), self.categories, ~labeled, self.n_categories)
        scale = self._scale(folds.known_shares(self.n_categories, rate) / np.maximum(base, 1e-9))
        return Calibration(known=known, novel=novel, labeled=of_given, scale=scale, label_rate=rate)

    def _scale(self, values: Floats | float) -> Floats:
        """(K,) the values of known categories, NaN for novel ones."""
        return np.where(np.arange(self.n_categories) < self.n_known, values, np.nan)


def _digests(rows: NDArray[Any]) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest() for row in rows]


def _weights(is_hidden: Bools, n: int, n_labeled: int, rate: float) -> Floats:
    """(M,) how many unlabeled images each held-back one stands for: of known classes, or of novel ones if hidden."""
    n_hidden = max(1, int(is_hidden.sum()))
    of_known = n_labeled / rate - n_labeled
    of_novel = n - n_labeled / rate
    weights = np.where(is_hidden, of_novel / n_hidden, of_known / max(1, len(is_hidden) - n_hidden))
    return weights / weights.mean() if weights.sum() > 0 else np.ones(len(is_hidden))


def _fit(share: Floats, right: Floats, weights: Floats, k: int) -> ReliabilityCurve:
    """The curve nearest to the evidence and, where there is little, to the share itself."""
    levels = np.linspace(0, 1, k + 1)
    at = np.rint(share * k).astype(np.int64)
    n_images, n_right = (
        np.bincount(at, each, minlength=k + 1) + 0.0 for each in (weights, weights * right)
    )
    smoothed = (n_right + PRIOR_IMAGES * levels) / (n_images + PRIOR_IMAGES)
    rising = isotonic_regression(
        smoothed, weights=n_images + PRIOR_IMAGES
    ).x  # within 0 and 1, as what it is made from
    return ReliabilityCurve(confidence=rising, right=n_right, n_images=n_images)


def _mean_by(values: Floats, groups: Ints, chosen: Bools, n_groups: int) -> Floats:
    """(G,) means of the chosen values of each group; of all values where a group has none chosen."""
    totals = np.bincount(groups[chosen], values[chosen], minlength=n_groups)
    counts = np.bincount(groups[chosen], minlength=n_groups)
    everyone = float(values.mean())
    return np.where(counts > 0, totals / np.maximum(counts, 1), everyone)
