"""Agglomerative clustering of frozen features: Ward's tree of what the encoder knows already, cut at K.

The training-free baseline of the paper's Table 1. Labels serve to estimate K, and for nothing else.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Self, Unpack

import torch

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import (
    InferenceSettings,
    check_distinct,
    check_n_clusters,
    unit_points,
    unit_tree,
)
from shoal.clustering.matching import matched_accuracy
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.methods.method import Discovery, Options, Representation, Task, to_numpy


@dataclass(frozen=True, kw_only=True, slots=True)
class AgglomerativeSettings:
    """Which encoder, and how K is estimated."""

    encoder: str = DEFAULT_ENCODER
    input_size: int | None = None
    """Side of the images the encoder sees; None: what it was made for."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """Only `rule`, `min_clusters` and `max_clusters` are used: nothing is shifted."""

    def with_seed(self, seed: int) -> Self:
        """The same settings: nothing here is drawn."""
        return self


def represent(
    task: Task, settings: AgglomerativeSettings, *, device: torch.device, **options: Unpack[Options]
) -> Representation:
    """Embed the images; there is nothing to train, to keep or to resume."""
    encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
    progress = options.get("progress")
    return Representation(
        embeddings=embed(task.pixels, encoder, progress=progress and partial(progress, "images")),
        embed=lambda pixels: embed(pixels, encoder),
    )


def cluster(
    learned: Representation,
    labels: Ints,
    settings: AgglomerativeSettings,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Cut Ward's tree at K."""
    points = unit_points(learned.embeddings, device=device)
    tree = unit_tree(points)
    estimate = None
    if n_clusters is None:
        estimate = settings.inference.estimate(tree, labels)
        n_clusters = estimate.n_clusters
    check_distinct(tree, check_n_clusters(n_clusters, labels, len(labels)))
    clusters = tree.cut(n_clusters)
    is_labeled = labels != UNLABELED
    return Discovery(
        clusters=clusters,
        n_clusters=n_clusters,
        embeddings=to_numpy(learned.embeddings),
        linkage=tree.linkage,
        accuracies=(matched_accuracy(labels[is_labeled], clusters[is_labeled]),),
        estimate=estimate,
        metrics=learned.metrics,
        epoch=learned.epoch,
    )
