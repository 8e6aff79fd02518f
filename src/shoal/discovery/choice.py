"""Did training help? The frozen encoder and the trained one, compared by labels that training never saw.

Labels of known categories that training does see say little: they are found better and better while novel categories
fall apart. So whole known categories are hidden from training and stand in for novel ones. Nothing here sees a label
that the user does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.matching import matched_accuracy
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.validation import Withheld
from shoal.methods.catalog import get_method
from shoal.methods.method import Representation


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which of two answers stands, and why."""

    hidden: tuple[str, ...]
    """Known categories that stood in for novel ones."""
    n_images: int
    """Labeled images whose label training never saw."""
    frozen: float
    """Share of them put right by the frozen encoder's embeddings."""
    trained: float
    """Share of them put right by the trained ones."""

    @property
    def keeps_training(self) -> bool:
        """Whether the trained answer stands: unless it is worse."""
        return self.trained >= self.frozen

    def in_words(self) -> str:
        """The comparison, and what follows from it."""
        shares = f"{100 * self.frozen:.1f} % without training, {100 * self.trained:.1f} % with it"
        end = "the trained answer stands" if self.keeps_training else "training did not help, the first answer stands"
        return f"of {self.n_images:,} labeled images kept from training, put right: {shares}; {end}"

    def to_dict(self) -> dict[str, Any]:
        """The record of it, for choice.json."""
        return {
            "kept": "trained" if self.keeps_training else "frozen",
            "accuracy": {"frozen": self.frozen, "trained": self.trained},
            "n_images": self.n_images,
            "hidden": list(self.hidden),
        }


def compare(
    frozen: Representation,
    trained: Representation,
    labels: Ints,
    classes: Sequence[str],
    withheld: Withheld,
    settings: DiscoverySettings,
) -> Choice:
    """Cluster both without the labels that training never saw, then match clusters to classes on those images alone."""
    left = np.array(labels)
    left[withheld.judged] = UNLABELED
    shares = []
    for learned in (frozen, trained):
        found = get_method(settings.method).cluster(
            learned, left, settings.of_method, n_clusters=settings.n_clusters, device=learned.embeddings.device
        )
        shares.append(matched_accuracy(labels[withheld.judged], found.clusters[withheld.judged]))
    hidden = tuple(classes[label] for label in withheld.hidden)
    return Choice(hidden=hidden, n_images=len(withheld.judged), frozen=shares[0], trained=shares[1])
