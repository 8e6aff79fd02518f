"""How well an encoder tells the known categories apart, by given labels alone, and what to do where it hardly does.

L labeled images, D columns.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.neighbors import k_nearest
from shoal.encoders.catalog import get_info, is_available

OTHER = "dinov2-small"
"""The encoder that is named where another one hardly sees the categories."""

MIN_JUDGED = 20
"""Labeled images below which nothing is said."""

HARDLY = 0.35
"""Share of the way from chance to no error; below it an encoder hardly sees the categories (benchmarks/results,
chosen on CUB-200 and Flowers-102)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestLabelAccuracy:
    """How often the nearest labeled image of a labeled image is of its category."""

    accuracy: float
    chance: float
    """How often any other labeled image would be."""
    n_images: int
    """Labeled images of categories that have two or more."""

    @property
    def share(self) -> float:
        """Share of the way from chance to no error."""
        return (self.accuracy - self.chance) / (1 - self.chance)

    def to_dict(self) -> dict[str, Any]:
        """The same for a script."""
        return asdict(self)


def nearest_label_accuracy(embeddings: Tensor, labels: Ints) -> NearestLabelAccuracy | None:
    """Compare each labeled image with its nearest labeled one; None where there are too few, or one category.

    `embeddings` (N, D) are unit rows, `labels` (N,) are -1 for unlabeled.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    given = labels[labeled]  # (L,)
    sizes = np.bincount(given)
    is_judged = sizes[given] > 1
    if is_judged.sum() < MIN_JUDGED or (sizes > 0).sum() < 2:
        return None
    points = embeddings[torch.from_numpy(labeled).to(embeddings.device)]
    rows = torch.arange(len(points), device=points.device)
    nearest = k_nearest(points, points, 1, exclude=rows).indices[:, 0].cpu().numpy()  # (L,)
    others = (sizes[given] - 1) / (len(given) - 1)
    return NearestLabelAccuracy(
        accuracy=float((given[nearest] == given)[is_judged].mean()),
        chance=float(others[is_judged].mean()),
        n_images=int(is_judged.sum()),
    )


def advise_encoder(measured: NearestLabelAccuracy, encoder: str) -> str | None:
    """What to do about an encoder that hardly sees the categories; nothing where it does, or is of the other's kind."""
    if measured.share >= HARDLY or encoder.partition("-")[0] == OTHER.partition("-")[0]:
        return None
    how = f"--encoder {OTHER} may"
    if not is_available(OTHER):
        how = f"{OTHER} may: `shoal encoders get {OTHER}` downloads it ({get_info(OTHER).size_mb} MB), once"
    return (
        f"{encoder} hardly tells the categories apart: of {measured.n_images:,} labeled images "
        f"{100 * measured.accuracy:.0f} % have a nearest labeled image of their own category, "
        f"by chance {100 * measured.chance:.0f} %; {how}"
    )
