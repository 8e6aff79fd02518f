"""Splits: validation images set aside by a user, and known/novel splits drawn for a benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Ints, as_labels


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Positions set aside for validation, and the rest. Both are sorted; together they are every
    image once."""

    training: Ints
    validation: Ints
    too_small: tuple[int, ...]
    """Known classes with a single labeled image: it stays in training, so validation cannot see
    the class."""


def hold_out_validation(labels: ArrayLike, *, share: float, rng: np.random.Generator) -> HoldOut:
    """Set aside `share` of the labeled images of each class, and of the unlabeled ones as a whole.

    Every class with two labeled images or more has at least one on each side. Only given labels are
    read (-1 for unlabeled): which class an unlabeled image truly belongs to cannot matter, because
    it is not here.
    """
    known = as_labels(labels, np.size(labels), name="labels")
    assert 0 < share < 1
    held_out = []
    too_small = []
    for label in np.unique(known):
        members = rng.permutation(np.flatnonzero(known == label))
        n_held_out = round(share * len(members))
        if label != UNLABELED:
            n_held_out = min(max(n_held_out, 1), len(members) - 1)
            if len(members) == 1:
                too_small.append(int(label))
        held_out.append(members[:n_held_out])
    validation = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *held_out]))
    training = np.setdiff1d(np.arange(len(known)), validation)
    return HoldOut(training, validation, tuple(too_small))


def known_novel_split(
    true_labels: ArrayLike,
    known_classes: Sequence[int] | Sequence[str],
    labeled_share: float = 0.5,
    *,
    seed: int = 0,
) -> Ints:
    """Label a share of the known-class images and nothing else: the protocol of every GCD
    benchmark.

    One draw of `int(labeled_share * n)` among the n images of known classes, in their given order,
    not stratified. Returns (N,) labels: the position of the class in `known_classes`, or -1.
    """
    truth = np.asarray(true_labels)  # (N,) any dtype
    assert 0 < labeled_share < 1
    wanted = np.asarray(known_classes)
    assert np.isin(wanted, truth).all(), "known classes that occur"
    candidates = np.flatnonzero(np.isin(truth, wanted))
    # The published splits were drawn from numpy's legacy generator, whose stream is frozen; no
    # other one gives them.
    legacy = np.random.RandomState(seed)
    drawn = candidates[
        legacy.choice(len(candidates), int(labeled_share * len(candidates)), replace=False)
    ]
    labels = np.full(len(truth), UNLABELED, dtype=np.int64)
    for label, known in enumerate(known_classes):
        labels[drawn[truth[drawn] == known]] = label
    return labels
