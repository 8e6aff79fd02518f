"""Agglomerative clustering of frozen features: Ward's tree of what the encoder knows already, cut
at K.

The training-free baseline of the paper's Table 1. Labels serve to estimate K, and for nothing else.
"""

from dataclasses import dataclass, field, replace

import torch

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.n_clusters import check_n_clusters
from shoal.clustering.sums import unit_points
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.method import Method, MethodSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class AgglomerativeSettings(MethodSettings):
    """Which encoder, and how K is estimated: of `inference` only `rule`, `min_clusters` and
    `max_clusters` are used."""

    inference: InferenceSettings = field(
        default_factory=lambda: InferenceSettings(estimate_shifts=0)
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
    return replace(
        learned.answer(clusters, n_clusters),
        linkage=tree.linkage,
        accuracies=(matched_accuracy(labels[is_labeled], clusters[is_labeled]),),
        estimate=estimate,
    )


METHOD = Method(
    settings=AgglomerativeSettings,
    title="Agglomerative",
    cluster=cluster,
    protocols={"shoal": {"inference.estimate_shifts": 0}},  # as the others have it
)
