"""Does training help, and how much of the frozen encoder is kept? Decided by held-out labels.

Labels of known categories that training does see say little: they are found better and better while
novel categories fall apart. So whole known categories are hidden from a first training and stand in
for novel ones. Images are then clustered by the frozen encoder, by the trained one and by both at
once, and the held-out labels say which is best. Nothing here sees a label that the user does not
have.

J held-out images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import binom

from shoal.arrays import Bools
from shoal.clustering.blend import TriedWeight, choose_weight
from shoal.words import count, percent

SIGNIFICANCE = 0.05
"""Level of McNemar's exact test, one-sided, from which one result is better than another."""


def is_significant(right: Bools, other: Bools) -> bool:
    """Whether significantly more images are `right` (J,) than in the `other` (J,)."""
    n_better = int(np.count_nonzero(right & ~other))
    n_worse = int(np.count_nonzero(other & ~right))
    # The probability of so many or more if each changed image were as likely to go either way.
    return float(binom.sf(n_better - 1, n_better + n_worse, 0.5)) <= SIGNIFICANCE


def can_be_significant(right: Bools) -> bool:
    """Whether any result could be significantly better than one in which these images are `right`
    (J,)."""
    return is_significant(np.ones_like(right), right)


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """How much of the frozen encoder is kept, and why; all of it unless training is significantly
    better."""

    hidden: tuple[str, ...]
    """Known categories that stood in for novel ones."""
    tried: Sequence[TriedWeight]
    """What the held-out images say of each weight of the frozen encoder; the last is 1, that
    encoder alone."""
    is_collapsed: bool = False
    """Whether training has brought all embeddings to nearly one direction: then no weight with
    training is tried."""

    @property
    def frozen(self) -> TriedWeight:
        """The frozen encoder alone."""
        return self.tried[-1]

    @cached_property
    def trained(self) -> TriedWeight:
        """The best weight with training; the frozen encoder alone where none was tried."""
        best = choose_weight(self.tried)
        others = [one for one in self.tried if one.weight < 1]
        if best.weight == 1 and others:
            return choose_weight(others)
        return best

    @property
    def is_significant(self) -> bool:
        """Whether training is significantly better."""
        return is_significant(self.trained.right, self.frozen.right)

    @property
    def chosen(self) -> TriedWeight:
        """The weight that is kept."""
        return self.trained if self.is_significant else self.frozen

    @property
    def kept(self) -> str:
        """The result that is kept: 'trained' or 'frozen'."""
        return "trained" if self.is_significant else "frozen"

    @property
    def is_hopeless(self) -> bool:
        """Whether every weight with training is significantly worse than the frozen encoder."""
        others = [one.right for one in self.tried if one.weight < 1]
        return all(is_significant(self.frozen.right, right) for right in others)

    @property
    def n_images(self) -> int:
        """How many images are held out."""
        return len(self.frozen.right)

    def in_words(self) -> str:
        """The comparison, on how many labels it rests, and what is kept."""
        shares = (
            f"{percent(_accuracy(self.frozen))} frozen, {percent(_accuracy(self.trained))} trained"
        )
        labels = count(self.n_images, "label")
        if self.is_collapsed:
            return f"Training has collapsed. Keeping the frozen result ({labels} held out)."
        test = "significant" if self.is_significant else "not significant"
        kept = f"Keeping the {self.kept} result"
        if 0 < self.chosen.weight < 1:
            kept += f", with a weight of {100 * self.chosen.weight:.0f} % for the frozen embeddings"
        return f"Held-out accuracy on {labels}: {shares} ({test}). {kept}."

    def to_dict(self) -> dict[str, Any]:
        """The record of it, for choice.json."""
        tried = [
            {"weight": one.weight, "n_shifts": one.n_shifts, "accuracy": _accuracy(one)}
            for one in self.tried
        ]
        return {
            "kept": self.kept,
            "frozen_weight": self.chosen.weight,
            "n_shifts": self.chosen.n_shifts,
            "accuracy": {"frozen": _accuracy(self.frozen), "trained": _accuracy(self.trained)},
            "is_significant": self.is_significant,
            "n_images": self.n_images,
            "tried": tried,
            "hidden": list(self.hidden),
            "is_collapsed": self.is_collapsed,
        }


def _accuracy(tried: TriedWeight) -> float:
    return float(tried.right.mean())
