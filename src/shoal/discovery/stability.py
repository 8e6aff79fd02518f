"""How sure the number of clusters is: the estimate repeated on random parts of the collection."""

from dataclasses import replace

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.n_clusters_range import keep_to

SHARE = 0.8
"""Share of the images in each repetition."""


def repeat_estimate(
    embeddings: Floats, labels: Ints, n_repeats: int, inference: InferenceSettings, *, seed: int, share: float = SHARE
) -> list[int]:
    """Estimate K on `n_repeats` random parts of the images: `embeddings` (N, D), `labels` (N,) with -1 for unlabeled.

    Labeled images are drawn class by class with at least one each, so that no known class drops out of a part. On all
    of the images it is the estimate that Algorithm 1 makes. One below a `min_clusters` is moved up to that.
    """
    rng = np.random.default_rng(seed)
    once = replace(inference, max_shifts=0, min_clusters=None)  # the estimate alone; a part may hold fewer images
    found = [_estimate_once(embeddings, labels, rng, once, share) for _ in range(n_repeats)]
    return [keep_to(number, inference.min_clusters, None) for number in found]


def _estimate_once(
    embeddings: Floats, labels: Ints, rng: np.random.Generator, inference: InferenceSettings, share: float
) -> int:
    parts = [_draw(np.flatnonzero(labels == label), rng, share) for label in np.unique(labels)]
    rows = np.sort(np.concatenate(parts))
    return infer(embeddings[rows], labels[rows], None, inference).n_clusters


def _draw(members: Ints, rng: np.random.Generator, share: float = SHARE) -> Ints:
    chosen: Ints = rng.choice(members, max(1, round(share * len(members))), replace=False)
    return chosen
