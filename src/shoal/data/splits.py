"""Validation splits of labeled collections, and known/novel splits of benchmarks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Ints, as_labels


def hold_out_validation(labels: ArrayLike, *, share: float, rng: np.random.Generator) -> Ints:
    """Return sorted positions of a share of each class's labeled images, and of the same share of
    the unlabeled images.

    Of every class with at least two labeled images, at least one is held out and one is not. The
    hidden classes of unlabeled images (-1) are not used.
    """
    known = as_labels(labels, np.size(labels), name="labels")
    assert 0 < share < 1
    held_out = [np.empty(0, dtype=np.int64)]
    for label in np.unique(known):
        members = rng.permutation(np.flatnonzero(known == label))
        n_held_out = round(share * len(members))
        if label != UNLABELED:
            n_held_out = min(max(n_held_out, 1), len(members) - 1)
        held_out.append(members[:n_held_out])
    return np.sort(np.concatenate(held_out))


def known_novel_split(
    true_labels: ArrayLike,
    known_classes: Sequence[int] | Sequence[str],
    labeled_share: float = 0.5,
    *,
    seed: int = 0,
) -> Ints:
    """Return labels (N,) for a share of the images of known classes, -1 for all others.

    This is the protocol of the GCD benchmarks: one sample of `int(labeled_share * n)` from the n
    images of known classes in dataset order, not stratified. A label is the position of the class
    in `known_classes`.
    """
    truth = np.asarray(true_labels)  # (N,) any dtype
    assert 0 < labeled_share < 1
    assert np.isin(known_classes, truth).all(), "a known class does not occur"
    candidates = np.flatnonzero(np.isin(truth, known_classes))
    # The published splits were sampled with numpy's legacy generator.
    legacy = np.random.RandomState(seed)
    n_labeled = int(labeled_share * len(candidates))
    sampled = candidates[legacy.choice(len(candidates), n_labeled, replace=False)]
    labels = np.full(len(truth), UNLABELED, dtype=np.int64)
    for label, known in enumerate(known_classes):
        labels[sampled[truth[sampled] == known]] = label
    return labels
