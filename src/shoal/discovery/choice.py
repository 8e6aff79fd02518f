"""Did training help? The frozen encoder and the trained one, compared by labels that training never saw.

Labels of known categories that training does see say little: they are found better and better while novel categories
fall apart. So whole known categories are hidden from training and stand in for novel ones. Nothing here sees a label
that the user does not have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import match
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.validation import Withheld
from shoal.methods.catalog import get_method
from shoal.methods.method import Representation
from shoal.report.words import count


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which of two answers stands, and why.

    Images that both answers put right, or both wrong, say nothing about which is better. If neither is, each of the
    others is as a toss of a coin, and the difference has a standard error of √(only_frozen + only_trained) images.
    """

    hidden: tuple[str, ...]
    """Known categories that stood in for novel ones."""
    n_images: int
    """Labeled images whose label training never saw."""
    both: int
    """How many of them both answers put right."""
    only_frozen: int
    """How many the frozen encoder's embeddings alone put right."""
    only_trained: int
    """How many the trained ones alone put right."""
    is_collapsed: bool = False
    """Whether training has brought all embeddings to nearly one direction: then so few images say little for it."""

    @property
    def frozen(self) -> float:
        """Share put right by the frozen encoder's embeddings."""
        return (self.both + self.only_frozen) / self.n_images

    @property
    def trained(self) -> float:
        """Share put right by the trained ones."""
        return (self.both + self.only_trained) / self.n_images

    @property
    def keeps_training(self) -> bool:
        """Whether the trained answer stands: unless it has collapsed, or is worse by more than one standard error."""
        return not self.is_collapsed and self.only_frozen - self.only_trained <= math.sqrt(
            self.only_frozen + self.only_trained
        )

    @property
    def kept(self) -> str:
        """The answer that stands."""
        return "trained" if self.keeps_training else "frozen"

    def in_words(self) -> str:
        """The comparison, on how many images it rests, and what follows from it."""
        shares = f"{100 * self.frozen:.1f} % without training, {100 * self.trained:.1f} % with it"
        alone = f"{self.only_frozen:,} and {self.only_trained:,} by one of them alone"
        end = "the trained answer stands"
        if self.is_collapsed:
            end = "training has collapsed, the first answer stands"
        elif not self.keeps_training:
            end = "training did not help, the first answer stands"
        elif self.only_frozen > self.only_trained:
            end = "so small a difference may be chance, the trained answer stands"
        return f"of {count(self.n_images, 'labeled image')} kept from training, put right: {shares} ({alone}); {end}"

    def to_dict(self) -> dict[str, Any]:
        """The record of it, for choice.json."""
        return {
            "kept": self.kept,
            "accuracy": {"frozen": self.frozen, "trained": self.trained},
            "n_images": self.n_images,
            "put_right": {"both": self.both, "only_frozen": self.only_frozen, "only_trained": self.only_trained},
            "hidden": list(self.hidden),
            "is_collapsed": self.is_collapsed,
        }


def compare(
    frozen: Representation,
    trained: Representation,
    labels: Ints,
    classes: Sequence[str],
    withheld: Withheld,
    settings: DiscoverySettings,
) -> Choice:
    """Cluster both without the labels that training never saw, then match clusters to classes on those images alone.

    K is estimated in the same way for both, on the whole collection: validation images carry labels that judge.
    """
    same = settings.estimating_on("collection")
    rights = [_put_right(learned, labels, withheld.judged, same) for learned in (frozen, trained)]  # (n_images,) each
    return Choice(
        hidden=tuple(classes[label] for label in withheld.hidden),
        n_images=len(withheld.judged),
        both=int((rights[0] & rights[1]).sum()),
        only_frozen=int((rights[0] & ~rights[1]).sum()),
        only_trained=int((rights[1] & ~rights[0]).sum()),
    )


def _put_right(learned: Representation, labels: Ints, judged: Ints, settings: DiscoverySettings) -> Bools:
    """Which of the judged images are in the cluster that is matched with their class."""
    left = np.array(labels)
    left[judged] = UNLABELED
    found = get_method(settings.method).cluster(
        learned, left, settings.of_method, n_clusters=settings.n_clusters, device=learned.embeddings.device
    )
    matching = match(labels[judged], found.clusters[judged])
    class_of = dict(zip(matching.clusters.tolist(), matching.classes.tolist(), strict=True))
    return np.array([class_of.get(int(found.clusters[row])) == labels[row] for row in judged], dtype=bool)
