"""Splits: validation images set aside by a user, and known/novel splits drawn for a benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Ints, as_labels
from shoal.errors import DataError, UsageError


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
    _check_share(share)
    held_out = []
    too_small = []
    for label in np.unique(known):
        members = rng.permutation(np.flatnonzero(known == label))
        if label != UNLABELED and len(members) == 1:
            too_small.append(int(label))
        held_out.append(members[: _n_held_out(len(members), share, is_class=label != UNLABELED)])
    validation = np.sort(np.concatenate(held_out)) if held_out else np.empty(0, dtype=np.int64)
    training = np.setdiff1d(np.arange(len(known)), validation)
    return HoldOut(training, validation, tuple(too_small))


def known_novel_split(
    true_labels: ArrayLike,
    known_classes: Sequence[Any],
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
    _check_share(labeled_share)
    missing = [known for known in known_classes if not (truth == known).any()]
    if missing or len(set(known_classes)) < len(known_classes):
        raise DataError(
            f"known_classes: expected classes that occur, each once; not found: {missing}"
        )
    candidates = np.flatnonzero(np.isin(truth, list(known_classes)))
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


def _n_held_out(n_members: int, share: float, *, is_class: bool) -> int:
    wanted = round(share * n_members)
    if is_class:
        wanted = min(max(wanted, 1), n_members - 1)
    return wanted


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(f"share: found {share}, expected a number between 0 and 1, such as 0.2")
