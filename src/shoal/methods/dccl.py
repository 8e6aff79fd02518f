"""DCCL (Pu, Zhong, Sebe, CVPR 2023): dynamic conceptional contrastive learning.

Training: before each epoch all images are linked with their nearest ones, and communities of this
graph, groups with more links within than between them, are the concepts. They are found by
scikit-network's Louvain search for the highest modularity, which chooses their number; a
`resolution` above 1 gives more and smaller ones. A memory holds the center of each concept. Beside
GCD's losses, the concept loss pulls each view toward the center of its image's concept and away
from the others, and the centers follow the views. Inference: GCD's semi-supervised k-means; K, if
not given, is the number of communities.

Shapes: n training images, N images, E links, B images per batch, C dimensions of a feature, M
concepts.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.categories import category_centers, other_neighbors
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.tree import number_by_first
from shoal.encoders.vision import Encoder, unit
from shoal.methods.classifier import labeled_cross_entropy
from shoal.methods.gcd import Gcd, GcdSettings, cluster_by_kmeans
from shoal.methods.method import Method, Representation
from shoal.settings import Count, Fraction, NonNegative, Range, Temperature
from shoal.training.model import Batch, Epoch, TaskShape, Tensors
from shoal.training.train_settings import linear_schedule

# Smallest rise of modularity for which the search continues; scikit-network's default of 1e-3 ends
# early
TOLERANCE = 1e-7


def link_neighbors(
    points: Tensor, labels: Ints, *, n_neighbors: int, min_similarity: float
) -> csr_matrix:
    """Return a symmetric graph (N, N) that links each of the unit points (N, D) with its nearest
    neighbors, weighted by their similarity, at least `min_similarity`.

    By their `labels` (N,), -1 for unlabeled, neighbors of the same class are linked with weight 1,
    and those of different classes are not linked.
    """
    near = other_neighbors(points, n_neighbors)
    first = np.repeat(np.arange(len(points)), near.indices.shape[1])  # (E,) one end of each link
    second = near.indices.cpu().numpy().ravel()  # (E,) and the other
    are_labeled = (labels[first] != UNLABELED) & (labels[second] != UNLABELED)
    are_alike = labels[first] == labels[second]
    weights = near.similarities.double().cpu().numpy().ravel()
    weights = np.where(are_labeled & are_alike, 1.0, weights)
    is_linked = (weights >= min_similarity) & (weights > 0) & (are_alike | ~are_labeled)
    shape = (len(points), len(points))
    graph = csr_matrix((weights[is_linked], (first[is_linked], second[is_linked])), shape=shape)
    return graph.maximum(graph.T)  # neighbors need not be mutual


def find_communities(graph: csr_matrix, *, resolution: float, min_members: int, seed: int) -> Ints:
    """Return the community (N,) of each image, numbered by its first image; -1 in communities with
    fewer than `min_members`.

    Deterministic for a graph and a seed. Cost: 3 s for half a million links, in one thread.
    """
    from sknetwork.clustering import Louvain

    if not graph.nnz:
        return np.full(graph.shape[0], UNLABELED)
    search = Louvain(
        resolution=resolution,
        modularity="newman",
        tol_optimization=TOLERANCE,
        tol_aggregation=TOLERANCE,
        shuffle_nodes=True,
        random_state=seed,
    )
    communities = number_by_first(search.fit_predict(graph))
    is_large = np.bincount(communities) >= min_members
    return np.where(is_large, np.cumsum(is_large) - 1, UNLABELED)[communities]


@dataclass(frozen=True, kw_only=True)
class DcclSettings(GcdSettings):
    """Settings of DCCL; `recipes/dccl` holds the published values."""

    search_n_clusters: bool = True
    """Whether K is the number of communities; else `inference.rule` estimates it. In `shoal
    discover`, the K of the frozen result comes first."""
    n_neighbors: Count = 15
    """Neighbors that each image is linked with."""
    min_similarity: float = 0.6
    """Smallest cosine of linked neighbors."""
    min_members: Count = 5
    """Smallest community that is a concept; images of smaller ones have no concept loss."""
    resolutions: Annotated[
        tuple[float, ...],
        Range("numbers above 0, say [1.0]", lambda values: min(values, default=0) > 0),
    ] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Resolutions of the communities. The one with the highest labeled accuracy is used, on the
    graph of the first epoch without the links that labels decide."""
    concept_weight: NonNegative = 0.4
    """Weight of the concept loss after its ramp."""
    initial_concept_weight: NonNegative = 0.04
    """Weight of the concept loss in the first epoch; it increases linearly."""
    concept_ramp: Fraction = 0.5
    """The share of all epochs in which the weight increases; published: 100 of 200."""
    concept_temperature: Temperature = 0.05
    """Temperature of the concept loss."""
    concept_momentum: Fraction = 0.1
    """Momentum of the centers."""

    def concept_weight_at(self, epoch: int) -> float:
        n_epochs = round(self.concept_ramp * self.training.epochs)
        return linear_schedule(epoch, self.initial_concept_weight, self.concept_weight, n_epochs)

    def find_n_clusters(self, learned: Representation, points: Tensor, labels: Ints) -> int:
        """Return the number of concepts among points (N, C)."""
        if isinstance(learned.model, Dccl):
            resolution = float(learned.model.resolution)
        else:
            resolution = choose_resolution(points, labels, self)
        return int(find_concepts(points, labels, resolution, self).max(initial=-1)) + 1


class Dccl(Gcd):
    """GCD's losses and the concept loss; concepts are recomputed before each epoch."""

    resolution: Tensor
    concepts: Tensor  # (n,) of the current epoch, -1 for none
    centers: Tensor  # (M, C) of the concepts, unit rows

    def __init__(self, encoder: Encoder, settings: DcclSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.register_buffer(
            "resolution", torch.tensor(settings.resolutions[0], dtype=torch.float64)
        )

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        points = epoch.embed()
        labels = epoch.labels.cpu().numpy()
        if epoch.number == 0:
            self.resolution.fill_(choose_resolution(points, labels, self.settings))
        concepts = find_concepts(points, labels, float(self.resolution), self.settings)  # (n,)
        self.concepts = torch.from_numpy(concepts).to(points.device)
        n_concepts = int(concepts.max()) + 1
        members = concepts != UNLABELED
        centers = category_centers(
            points[self.concepts != UNLABELED], concepts[members], n_concepts
        )
        self.centers = centers.float()
        return {"n_concepts": float(n_concepts), "share_in_concepts": float(members.mean())}

    def loss(self, batch: Batch) -> Tensors:
        losses = super().loss(batch)
        concept = self.concept_loss(batch)
        total = losses["loss"] + self.settings.concept_weight_at(batch.epoch) * concept
        return {**losses, "loss": total, "loss_concept": concept}

    def concept_loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the cosines of views with all centers, over views whose image
        has a concept."""
        features = batch.gather(batch.outputs["features"])  # (2B, C)
        if len(self.centers) == 0:
            return features.sum() * 0
        logits = features @ self.centers.T / self.settings.concept_temperature  # (2B, M)
        return labeled_cross_entropy(logits, self.concepts[batch.gather(batch.images)])

    def after_step(self, batch: Batch) -> None:
        """Move the center of each concept in the batch toward the mean of its views."""
        n_concepts = len(self.centers)
        features = batch.gather(batch.outputs["features"].detach())
        concepts = self.concepts[batch.gather(batch.images)]
        # A product instead of index_add_, whose order of additions on a GPU is not fixed.
        members = F.one_hot(concepts + 1, n_concepts + 1)[:, 1:].to(features.dtype)  # (2B, M)
        n_views = members.sum(dim=0)[:, None]  # (M, 1)
        means = members.T @ features / n_views.clamp_min(1)
        momentum = self.settings.concept_momentum
        moved = unit(momentum * self.centers + (1 - momentum) * means)
        self.centers = torch.where(n_views > 0, moved, self.centers)


def find_concepts(points: Tensor, labels: Ints, resolution: float, settings: DcclSettings) -> Ints:
    """Return the concept (N,) of each of the unit points (N, C); labels (N,) decide the links
    between labeled ones."""
    graph = link_neighbors(
        points, labels, n_neighbors=settings.n_neighbors, min_similarity=settings.min_similarity
    )
    return find_communities(
        graph, resolution=resolution, min_members=settings.min_members, seed=settings.training.seed
    )


def choose_resolution(points: Tensor, labels: Ints, settings: DcclSettings) -> float:
    """Return the resolution with the highest accuracy, on labels (N,), of communities that do not
    use them; the first on ties, or without labels."""
    is_labeled = labels != UNLABELED
    resolutions = settings.resolutions
    if not is_labeled.any():
        return resolutions[0]
    no_labels = np.full_like(labels, UNLABELED)
    alone = -1 - np.arange(int(is_labeled.sum()))  # an image without a concept is its own cluster
    accuracies = []
    for resolution in resolutions:
        concepts = find_concepts(points, no_labels, resolution, settings)[is_labeled]
        clusters = np.where(concepts == UNLABELED, alone, concepts)
        accuracies.append(matched_accuracy(labels[is_labeled], clusters))
    return resolutions[int(np.argmax(accuracies))]


METHOD = Method(
    settings=DcclSettings,
    title="DCCL",
    model=Dccl,
    cluster=cluster_by_kmeans,
    protocols={"reference": {"n_neighbors": 14}},  # 15 with the image itself
)
