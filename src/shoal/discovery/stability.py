"""How sure the number of clusters is: the estimate repeated on random parts of the collection."""

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage

SHARE = 0.8
"""Share of the images in each repetition."""


def repeat_estimate(embeddings: Floats, labels: Ints, n_repeats: int, *, rule: str, seed: int) -> list[int]:
    """Estimate K on `n_repeats` random parts of the images: `embeddings` (N, D), `labels` (N,) with -1 for unlabeled.

    Labeled images are drawn class by class with at least one each, so that no known class drops out of a part.
    """
    rng = np.random.default_rng(seed)
    return [_estimate_once(embeddings, labels, rng, rule) for _ in range(n_repeats)]


def _estimate_once(embeddings: Floats, labels: Ints, rng: np.random.Generator, rule: str) -> int:
    parts = [_draw(np.flatnonzero(labels == label), rng) for label in np.unique(labels)]
    rows = np.sort(np.concatenate(parts))
    tree = Tree(ward_linkage(embeddings[rows]))
    return estimate_n_clusters(tree, labels[rows], rule=rule).n_clusters


def _draw(members: Ints, rng: np.random.Generator) -> Ints:
    chosen: Ints = rng.choice(members, max(1, round(SHARE * len(members))), replace=False)
    return chosen
