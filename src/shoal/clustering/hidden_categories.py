"""Categories that may be mixtures of two: a known one with a novel one, or two novel ones.

A Ward tree is built for each category, and two kinds of evidence score its splits. Height: two
categories are farther apart than two halves of one category; the other categories provide the
typical height. Labels: a split of one class has labels on both sides, while a novel category has
none. Labels are evidence only for embeddings that were not trained with them, so pass those of the
frozen encoder.

Shapes: N images, D columns, K categories; n images of one category, S candidate splits of it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit, gammaln
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Floats, Ints
from shoal.clustering.iterates import unit_tree

HEIGHT_WEIGHT = 7.0
"""Weight of log(height of the split / median height of the categories) in the log-odds. The weights
and the prior come from a logistic regression on Flowers-102 and CUB-200."""
LABEL_WEIGHT = 0.45
"""Weight of the log-likelihood ratio of the labels; below 1, because labeled images are not
independent."""
SIZE_WEIGHT = 2.1
"""Weight of log(size of the category / median size of the categories)."""
PRIOR = -4.5
"""Log-odds of a split of median height in a category of median size without labels."""
LABEL_RATIO_RANGE = (-8.0, 6.0)
"""Limits of the log-likelihood ratio, so that labels alone never decide."""
STRAY_LABELS = 0.05
"""Expected share of labels on the novel side of a correct split, caused by errors of the tree."""
MIN_SHARE = 0.1
"""Smallest share of a category that is split off."""
MIN_IMAGES = 4
"""Smallest size of a category that may be split."""
MAX_COMPARED = 2_000
"""Largest number of images in the tree of a category; the others join the nearer side."""
SPLIT_FROM = 0.5
"""Probability above which a known category is split, if the number of categories is estimated."""


@dataclass(frozen=True, eq=False)
class Mixtures:
    """The probability that each category is a mixture, and its most probable split."""

    probability: Floats
    """(K,)"""
    is_apart: Bools
    """(N,) whether an image is in the part that the split would move to another category."""


def find_mixtures(points: Tensor, categories: Ints, labels: Ints, n_categories: int) -> Mixtures:
    """Search each of the `categories` (N,), 0 … K-1, for a second category, given unit rows
    `points` (N, D) and `labels` (N,), -1 for unlabeled."""
    probability = np.zeros(n_categories)
    is_apart = np.zeros(len(categories), dtype=bool)
    splits = []
    for category in np.flatnonzero(np.bincount(categories) >= MIN_IMAGES):
        rows = np.flatnonzero(categories == category)
        splits.append(_Splits(points, rows, labels[rows] != UNLABELED))
    for split in splits:
        median_height = float(np.median([other.heights.max() for other in splits]))
        median_size = float(np.median([len(other.rows) for other in splits]))
        probability[categories[split.rows[0]]], apart = split.best(median_height, median_size)
        is_apart[apart] = True
    return Mixtures(probability, is_apart)


def split_mixtures(
    clusters: Ints, labels: Ints, mixtures: Mixtures, max_splits: int | None = None
) -> Ints:
    """Return the clusters (N,) after splitting every labeled one that is probably a mixture; new
    clusters are numbered after the others.

    Clusters without labels are not split, because height alone is weak evidence. Labeled images
    stay in their cluster. At most `max_splits` clusters are added, the most probable first.
    """
    split = clusters.copy()
    next_cluster = len(mixtures.probability)
    likely = np.argsort(-mixtures.probability, kind="stable")[:max_splits]
    for cluster in likely[mixtures.probability[likely] >= SPLIT_FROM]:
        is_member = clusters == cluster
        is_moved = is_member & mixtures.is_apart & (labels == UNLABELED)
        if (labels[is_member] != UNLABELED).any() and is_moved.any():
            split[is_moved] = next_cluster
            next_cluster += 1
    return split


class _Splits:
    """Candidate splits of one category: each node of its tree against the category's other
    images."""

    def __init__(self, points: Tensor, rows: Ints, is_labeled: Bools) -> None:
        self.rows = rows
        step = max(1, -(-len(rows) // MAX_COMPARED))  # rounded up
        self.is_labeled = is_labeled[::step]  # (n,)
        self.points = points[torch.from_numpy(rows).to(points.device)]
        self.compared = self.points[::step]  # (n, D)
        linkage = unit_tree(self.compared).linkage
        n = len(self.compared)
        nodes = list(np.arange(n)[:, None])
        for left, right in linkage[:, :2].astype(np.int64):
            nodes.append(np.concatenate([nodes[left], nodes[right]]))
        smallest = max(2, MIN_SHARE * n)
        parts = [node for node in nodes if smallest <= len(node) <= n - 2]
        self.parts = parts or [nodes[int(linkage[-1, 0])]]
        vectors = self.compared.double().cpu().numpy()
        sums = np.stack([vectors[part].sum(axis=0) for part in self.parts])  # (S, D)
        self.sizes = np.array([len(part) for part in self.parts])  # (S,)
        rest = n - self.sizes
        gaps = sums / self.sizes[:, None] - (vectors.sum(axis=0) - sums) / rest[:, None]
        # The height at which Ward's method would merge the two sides.
        self.heights = np.sqrt(2 * self.sizes * rest / n) * np.linalg.norm(gaps, axis=1)  # (S,)

    def best(self, median_height: float, median_size: float) -> tuple[float, Ints]:
        """Return the probability of the best split, and the rows that it splits off."""
        tiny = np.finfo(np.float64).tiny
        ratio = np.maximum(self.heights, tiny) / max(median_height, tiny)
        log_odds = PRIOR + SIZE_WEIGHT * np.log(len(self.rows) / median_size)
        log_odds = log_odds + HEIGHT_WEIGHT * np.log(ratio) + LABEL_WEIGHT * self._label_ratio()
        best = int(log_odds.argmax())
        is_part = np.zeros(len(self.compared), dtype=bool)
        is_part[self.parts[best]] = True
        if not self.is_labeled.any() and 2 * is_part.sum() > len(is_part):
            is_part = ~is_part  # without labels, the smaller part is split off
        if len(self.compared) < len(self.rows):  # assign all images to the nearer mean
            inside = torch.from_numpy(is_part).to(self.compared.device)
            mean = self.compared[inside].mean(dim=0)
            other = self.compared[~inside].mean(dim=0)
            is_nearer = (self.points - (mean + other) / 2) @ (mean - other) > 0
            is_part = is_nearer.cpu().numpy()
        return float(expit(log_odds[best])), self.rows[is_part]

    def _label_ratio(self) -> Floats:
        """Return log P(labels per side | two categories) - log P(labels per side | one), (S,)."""
        n = len(self.is_labeled)
        n_labeled = int(self.is_labeled.sum())
        if n_labeled in (0, n):
            return np.zeros(len(self.parts))
        in_part = np.array([self.is_labeled[part].sum() for part in self.parts])
        in_rest = n_labeled - in_part
        # Two categories: each label is on the novel side with probability STRAY_LABELS (binomial).
        if_two = _log_choose(n_labeled, in_part)
        if_two += in_part * np.log(STRAY_LABELS) + in_rest * np.log(1 - STRAY_LABELS)
        # One category: labels are a random sample of its images (hypergeometric).
        if_one = _log_choose(self.sizes, in_part) + _log_choose(n - self.sizes, in_rest)
        if_one -= _log_choose(n, n_labeled)
        return np.clip(if_two - if_one, *LABEL_RATIO_RANGE)


def _log_choose(n: Ints | int, k: Ints | int) -> Floats:
    """Return the logarithm of the binomial coefficient."""
    ways: Floats = gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
    return ways
