"""Categories that may hold two: a novel category hidden in a known one, or two novel ones in one.

Each category has a Ward tree of its own, and two kinds of evidence speak for one of its splits.
Height: two categories lie farther apart than the halves of one, and the other categories show how
far halves lie apart. Labels: those of one class lie on both sides of a split, while a category that
nobody has labeled has none. Labels are evidence only on embeddings that were not trained with them,
so pass those of the frozen encoder.

N images, D columns, K categories; n images of one category, C candidate parts of it.
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
"""Weight of the log-likelihood ratio of the labels; below 1 because labeled images resemble each
other."""
SIZE_WEIGHT = 2.1
"""Weight of log(size of the category / median size of the categories)."""
PRIOR = -4.5
"""Log-odds of a split of median height in a category of median size without labels."""
LABEL_RATIO_RANGE = (-8.0, 6.0)
"""Range of the log-likelihood ratio: no number of labels decides alone."""
STRAY_LABELS = 0.05
"""Share of a category's labels that end up in the part of another category, by mistakes of the
tree."""
MIN_SHARE = 0.1
"""Smallest share of a category that a part may have."""
MIN_IMAGES = 4
"""Categories with fewer images are not split."""
MAX_COMPARED = 2_000
"""Images of a category that its tree is grown from; the rest join the nearer part."""
SPLIT_FROM = 0.5
"""Probability from which a known category is split where the number of categories is estimated."""


@dataclass(frozen=True, eq=False)
class Mixtures:
    """How likely each category holds another one, and which images that would be."""

    probability: Floats
    """(K,)"""
    is_apart: Bools
    """(N,) whether an image is in the part of its category that would be the other one."""


def find_mixtures(points: Tensor, categories: Ints, labels: Ints, n_categories: int) -> Mixtures:
    """Look for a second category in each of the `categories` (N,), 0 … K-1, of unit rows `points`
    (N, D).

    `labels` (N,) are -1 for unlabeled.
    """
    probability = np.zeros(n_categories)
    is_apart = np.zeros(len(categories), dtype=bool)
    splits = {}
    for category in range(n_categories):
        rows = np.flatnonzero(categories == category)
        if len(rows) >= MIN_IMAGES:
            splits[category] = _Splits(points, rows, labels[rows] != UNLABELED)
    if splits:
        usual_height = float(np.median([split.heights.max() for split in splits.values()]))
        usual_size = float(np.median([len(split.rows) for split in splits.values()]))
    for category, split in splits.items():
        probability[category], apart = split.best(usual_height, usual_size)
        is_apart[apart] = True
    return Mixtures(probability, is_apart)


def split_mixtures(
    clusters: Ints, labels: Ints, mixtures: Mixtures, most: int | None = None
) -> Ints:
    """Give the hidden part of each likely mixture that holds labels a cluster of its own, numbered
    after the others.

    Clusters without labels are left alone: of these the height says too little. Labeled images stay
    where they are. At most `most` clusters are added, the likeliest first.
    """
    parted = clusters.copy()
    next_cluster = len(mixtures.probability)
    order = np.argsort(-mixtures.probability, kind="stable")
    likely = order[mixtures.probability[order] >= SPLIT_FROM]
    for cluster in likely[:most]:
        is_member = clusters == cluster
        leaves = is_member & mixtures.is_apart & (labels == UNLABELED)
        if (labels[is_member] != UNLABELED).any() and leaves.any():
            parted[leaves] = next_cluster
            next_cluster += 1
    return parted


class _Splits:
    """The ways to split one category in two that its tree offers: a node against the rest."""

    def __init__(self, points: Tensor, rows: Ints, is_labeled: Bools) -> None:
        self.rows = rows
        step = max(1, -(-len(rows) // MAX_COMPARED))
        self.is_labeled = is_labeled[::step]  # (n,)
        self.everyone = points[torch.from_numpy(rows).to(points.device)]
        self.compared = self.everyone[::step]  # (n, D)
        linkage = unit_tree(self.compared).linkage
        n = len(self.compared)
        members = [np.array([leaf]) for leaf in range(n)]
        for left, right in linkage[:, :2].astype(np.int64):
            members.append(np.concatenate([members[left], members[right]]))
        smallest = max(2, MIN_SHARE * n)
        self.parts = [part for part in members if smallest <= len(part) <= n - 2]
        if not self.parts:
            self.parts = [members[int(linkage[-1, 0])]]
        vectors = self.compared.double().cpu().numpy()
        sums = np.stack([vectors[part].sum(axis=0) for part in self.parts])  # (C, D)
        self.sizes = np.array([len(part) for part in self.parts])  # (C,)
        rest = n - self.sizes
        gaps = sums / self.sizes[:, None] - (vectors.sum(axis=0) - sums) / rest[:, None]
        self.heights = np.sqrt(2 * self.sizes * rest / n) * np.linalg.norm(gaps, axis=1)

    def best(self, usual_height: float, usual_size: float) -> tuple[float, Ints]:
        """The probability of the likeliest split, and the images (M,) that it takes out of the
        category."""
        tiny = np.finfo(np.float64).tiny
        ratio = np.maximum(self.heights, tiny) / max(usual_height, tiny)
        log_odds = PRIOR + SIZE_WEIGHT * np.log(len(self.rows) / usual_size)
        log_odds = log_odds + HEIGHT_WEIGHT * np.log(ratio) + LABEL_WEIGHT * self._label_ratio()
        chosen = int(log_odds.argmax())
        is_part = np.zeros(len(self.compared), dtype=bool)
        is_part[self.parts[chosen]] = True
        if not self.is_labeled.any() and 2 * is_part.sum() > len(is_part):
            is_part = ~is_part  # without labels the smaller part is the other category
        if len(self.compared) < len(self.rows):  # those not compared join the nearer mean
            inside = torch.from_numpy(is_part).to(self.compared.device)
            mean = self.compared[inside].mean(dim=0)
            other = self.compared[~inside].mean(dim=0)
            nearer = (self.everyone - (mean + other) / 2) @ (mean - other) > 0
            is_part = nearer.cpu().numpy()
        return float(expit(log_odds[chosen])), self.rows[is_part]

    def _label_ratio(self) -> Floats:
        """(C,) log P(labels on each side | another category) - log P(the same | one category)."""
        n = len(self.is_labeled)
        n_labeled = int(self.is_labeled.sum())
        if n_labeled in (0, n):
            return np.zeros(len(self.parts))
        in_part = np.array([self.is_labeled[part].sum() for part in self.parts])
        in_rest = n_labeled - in_part
        if_other = _log_choose(n_labeled, in_part)
        if_other += in_part * np.log(STRAY_LABELS) + in_rest * np.log(1 - STRAY_LABELS)
        if_one = _log_choose(self.sizes, in_part) + _log_choose(n - self.sizes, in_rest)
        if_one -= _log_choose(n, n_labeled)
        return np.clip(if_other - if_one, *LABEL_RATIO_RANGE)


def _log_choose(n: Ints | int, k: Ints | int) -> Floats:
    """Logarithm of the number of ways to choose k of n."""
    ways: Floats = gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
    return ways
