"""DCCL (Pu, Zhong, Sebe, CVPR 2023): images are drawn to concepts, which are communities in the
graph of neighbors.

Training: before each epoch all images are linked with their nearest ones, and communities of this
graph are taken for concepts. A memory holds the center of each concept. Beside GCD's losses each
view is drawn to the center of its image's concept and away from the others, and the centers follow
the views. Inference: GCD's semi-supervised k-means; K, where it is not given, is the number of
communities.

n training images, N images, B of a batch, C entries of a feature, M concepts.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.communities import find_communities, link_neighbors
from shoal.clustering.matching import matched_accuracy
from shoal.encoders.head import unit
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.classifier import labeled_cross_entropy
from shoal.methods.clusters import Representation
from shoal.methods.gcd import Gcd, GcdSettings, clustering_by_kmeans
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.model import Batch, Epoch, TaskShape
from shoal.training.train_settings import ramp

COUNTED_BY = "the number of communities"
"""How K is found where that is searched for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DcclSettings(GcdSettings):
    """Everything that can be set; `recipes/dccl` holds the published values."""

    search_n_clusters: bool = True
    """Take the number of communities for K; else the one of `inference.rule`. Where `shoal
    discover` takes K from its first answer, that stays."""
    n_neighbors: int = 15
    """Images that each one is linked with."""
    min_similarity: float = 0.6
    """Cosine from which on two neighbors are linked."""
    min_members: int = 5
    """Images from which on a community is a concept; those of smaller ones are drawn to none."""
    resolutions: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """How fine communities are. Of several the one with the highest labeled accuracy is taken, on
    the graph of the first epoch without what labels say about links."""
    concept_weight: float = 0.4
    """Of the concept loss beside GCD's, once it has risen."""
    first_concept_weight: float = 0.04
    """Where it begins; it rises along a line."""
    concept_ramp: float = 0.5
    """The share of all epochs in which it rises, so that a shorter training sees its end;
    published: 100 of 200."""
    concept_temperature: float = 0.05
    """What cosines with the centers are divided by."""
    concept_momentum: float = 0.1
    """What is left of a center when it follows the views of a batch."""

    def __post_init__(self) -> None:
        GcdSettings.__post_init__(self)  # a dataclass with slots has no super() here
        check_numbers(
            self,
            counts=["n_neighbors", "min_members"],
            not_negative=["concept_weight", "first_concept_weight"],
            temperatures=["concept_temperature"],
            shares=["concept_momentum", "concept_ramp"],
        )
        if not self.resolutions or min(self.resolutions) <= 0:
            raise UsageError(
                f"resolutions: found {self.resolutions}, expected numbers above 0, say [1.0]"
            )

    def concept_weight_at(self, epoch: int) -> float:
        """The weight of the concept loss in an epoch, counted from 0."""
        n_epochs = round(self.concept_ramp * self.training.epochs)
        return ramp(epoch, self.first_concept_weight, self.concept_weight, n_epochs)


class Dccl(Gcd[DcclSettings]):
    """GCD's losses and the concept loss. Concepts are renewed before each epoch, so a resumed run
    makes the same."""

    resolution: Tensor

    def __init__(self, encoder: Encoder, settings: DcclSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.register_buffer(
            "resolution", torch.tensor(settings.resolutions[0], dtype=torch.float64)
        )
        self.concepts = torch.full((shape.n_images,), UNLABELED)  # (n,) -1: none
        self.centers = torch.empty(0, encoder.feature_dim)  # (M, C) unit rows

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Find the concepts among the training images, and their centers."""
        points = epoch.embed()
        labels = epoch.labels.cpu().numpy()
        if epoch.number == 0:
            self.resolution.fill_(choose_resolution(points, labels, self.settings))
        concepts = find_concepts(points, labels, float(self.resolution), self.settings)  # (n,)
        self.concepts = torch.from_numpy(concepts).to(points.device)
        in_one = self.concepts >= 0
        self.centers = category_centers(
            points[in_one], concepts[concepts >= 0], int(concepts.max(initial=-1)) + 1
        ).float()
        return {
            "n_concepts": float(len(self.centers)),
            "in_concepts": float((concepts >= 0).mean()),
        }

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The whole loss and its parts."""
        losses = super().loss(batch)
        concept = self.concept_loss(batch)
        total = losses["loss"] + self.settings.concept_weight_at(batch.epoch) * concept
        return {**losses, "loss": total, "loss_concept": concept}

    def concept_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of the cosines of views with all centers; of views whose image has a
        concept."""
        features = batch.gather(batch.outputs["features"])  # (2B, C)
        if len(self.centers) == 0:
            return features.sum() * 0
        with torch.autocast(features.device.type, enabled=False):
            logits = (
                features.float() @ self.centers.T / self.settings.concept_temperature
            )  # (2B, M)
            return labeled_cross_entropy(logits, self.concepts[batch.gather(batch.images)])

    def after_step(self, batch: Batch) -> None:
        """Let the center of each concept in the batch follow the mean of its views."""
        n_concepts = len(self.centers)
        if n_concepts == 0:
            return
        features = batch.gather(batch.outputs["features"].detach())
        concepts = self.concepts[batch.gather(batch.images)]
        # A product and not a sum into rows: that would add in no fixed order on a GPU.
        members = F.one_hot(concepts + 1, n_concepts + 1)[:, 1:].to(features.dtype)  # (2B, M)
        n_views = members.sum(dim=0)[:, None]  # (M, 1)
        means = members.T @ features / n_views.clamp_min(1)
        share = self.settings.concept_momentum
        self.centers = torch.where(
            n_views > 0, unit(share * self.centers + (1 - share) * means), self.centers
        )


def find_concepts(points: Tensor, labels: Ints, resolution: float, settings: DcclSettings) -> Ints:
    """(N,) the concept of each of the unit points (N, C), -1 for none; `labels` (N,) have a say in
    who is linked."""
    graph = link_neighbors(
        points, labels, n_neighbors=settings.n_neighbors, min_similarity=settings.min_similarity
    )
    return find_communities(
        graph, resolution=resolution, min_members=settings.min_members, seed=settings.training.seed
    )


def choose_resolution(points: Tensor, labels: Ints, settings: DcclSettings) -> float:
    """The resolution whose communities agree best with labels (N,) that they do not know; the first
    of equals.

    Without labels it is the first of all.
    """
    is_labeled = labels != UNLABELED
    tried = settings.resolutions
    if len(tried) == 1 or not is_labeled.any():
        return tried[0]
    nobody = np.full_like(labels, UNLABELED)
    groupings = [
        find_concepts(points, nobody, resolution, settings)[is_labeled] for resolution in tried
    ]
    # Images without a concept are each alone.
    alone = -1 - np.arange(int(is_labeled.sum()))
    accuracies = [
        matched_accuracy(labels[is_labeled], np.where(one >= 0, one, alone)) for one in groupings
    ]
    return tried[int(np.argmax(accuracies))]


def count_concepts(
    learned: Representation, points: Tensor, labels: Ints, settings: DcclSettings
) -> int:
    """How many concepts there are among points (N, C), within the range in `inference`."""
    if isinstance(learned.model, Dccl):
        resolution = float(learned.model.resolution)
    else:
        resolution = choose_resolution(points, labels, settings)
    concepts = find_concepts(points, labels, resolution, settings)
    return settings.keep_to_range(max(int(concepts.max(initial=-1)) + 1, 1), labels)


METHOD = Method(
    settings=DcclSettings,
    title="DCCL",
    model=Dccl,
    cluster=clustering_by_kmeans(count_concepts, COUNTED_BY),
)
