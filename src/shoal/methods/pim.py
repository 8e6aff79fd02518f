"""PIM (Chiaroni et al., ICCV 2023): GCD's features, clustered by the most informative linear
classifier.

Training is that of GCD. Inference: a linear classifier starts from the centers of semi-supervised
k-means and is fitted to all features at once. Its predictions shall be sure for each unlabeled
image, spread over the clusters on the whole, and right for labeled images. How much sureness
counts, λ, decides how unequal clusters may be; it is the λ that does best on labeled images when
the same is done without their labels.

N images, D columns of an embedding, K clusters, C known classes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.sums import unit_points
from shoal.errors import UsageError
from shoal.methods.classifier import entropy_of_mean, labeled_cross_entropy
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.gcd import (
    Gcd,
    GcdSettings,
    cluster_points,
    decide_n_clusters,
    plain_kmeans,
)
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.model import numbered_labels

COUNTED_BY = (
    "highest accuracy of PIM without labels on trained features by all given labels, Brent's search"
)
"""How K is found where that is searched for."""

MUTUAL_INFORMATION = 1.0
"""λ with which the objective without labels is the mutual information of images and clusters."""


GRID = tuple(round(0.05 * step, 2) for step in range(2, 21))


@dataclass(frozen=True, kw_only=True, slots=True)
class PimSettings(GcdSettings):
    """Everything that can be set; `recipes/pim` holds the published values.

    `n_init` counts the starts of the k-means that the classifier begins from.
    """

    search_n_clusters: bool = True
    """Estimate K by the highest labeled accuracy of the classifier fitted without labels, found by
    Brent's search; else by `inference.rule`. Where `shoal discover` takes K from its first answer,
    that stays."""
    sharpness: float = 25.0
    """What the classifier's products are multiplied by."""
    sureness_weights: tuple[float, ...] = GRID
    """The λ that are tried, each at the cost of a fit."""
    fit_steps: int = 1000
    """Steps of Adam over all images; each costs three products of N × D × K."""
    fit_lr: float = 0.001
    fit_weight_decay: float = 0.01

    def __post_init__(self) -> None:
        GcdSettings.__post_init__(self)  # a dataclass with slots has no super() here
        if not self.sureness_weights or not all(
            0 <= weight <= 100 for weight in self.sureness_weights
        ):
            raise UsageError(
                f"sureness_weights: found {self.sureness_weights}, expected some λ of 0 or more, "
                "say [0.5]"
            )
        check_numbers(
            self,
            counts=["fit_steps"],
            positive=["sharpness", "fit_lr"],
            not_negative=["fit_weight_decay"],
        )


def cluster(
    learned: Representation,
    labels: Ints,
    settings: PimSettings,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Fit the classifier to the embeddings; clusters that it leaves without images are none."""
    points = unit_points(learned.embeddings, device=device)
    number = decide_n_clusters(n_clusters, learned, points, labels, settings, search_by_pim)
    weight = choose_sureness_weight(points, labels, number.n_clusters, settings)
    begun = cluster_points(points, labels, number.n_clusters, settings)
    given = torch.from_numpy(numbered_labels(labels)).to(device)  # (N,)
    predicted = fit(points, begun.centers, given, weight, settings)
    bound = torch.where(given >= 0, given, predicted)
    used, clusters = np.unique(bound.cpu().numpy(), return_inverse=True)
    return replace(
        learned.answer(clusters, len(used)),
        estimate=number.estimate,
        counted_by=COUNTED_BY if number.is_searched else "",
    )


def choose_sureness_weight(
    points: Tensor, labels: Ints, n_clusters: int, settings: PimSettings
) -> float:
    """The λ with the highest labeled accuracy of a fit that sees no label; the first of equals.

    Without labels, or a choice, it is the middle one.
    """
    weights = settings.sureness_weights
    is_labeled = labels != UNLABELED
    if len(weights) == 1 or not is_labeled.any():
        return weights[len(weights) // 2]
    begun = plain_kmeans(points, n_clusters, settings.training.seed)
    accuracies = []
    for weight in weights:
        clusters = fit(points, begun.centers, None, weight, settings).cpu().numpy()
        accuracies.append(matched_accuracy(labels[is_labeled], clusters[is_labeled]))
    return weights[int(np.argmax(accuracies))]


def search_by_pim(
    learned: Representation, points: Tensor, labels: Ints, settings: PimSettings
) -> int:
    """K by the labeled accuracy of the classifier of most mutual information on points (N, D)."""

    def find(n_clusters: int) -> Ints:
        begun = plain_kmeans(points, n_clusters, settings.training.seed)
        found = fit(points, begun.centers, None, MUTUAL_INFORMATION, settings)
        clusters: Ints = found.cpu().numpy()
        return clusters

    return settings.search(find, labels)


def fit(
    points: Tensor, centers: Tensor, labels: Tensor | None, weight: float, settings: PimSettings
) -> Tensor:
    """(N,) the clusters of unit points (N, D) by a classifier that starts from centers (K, D).

    `labels` (N,) are 0 … C-1, -1 for unlabeled; None: none is known.
    """
    if labels is None:
        labels = torch.full((len(points),), UNLABELED, dtype=torch.int64, device=points.device)
    rows = points.float()
    directions = F.normalize(centers.float(), dim=1).requires_grad_()  # (K, D)
    optimizer = torch.optim.Adam(
        [directions], lr=settings.fit_lr, weight_decay=settings.fit_weight_decay
    )
    with torch.enable_grad():
        for _ in range(settings.fit_steps):
            optimizer.zero_grad()
            loss = objective(settings.sharpness * rows @ directions.T, labels, weight)
            torch.autograd.backward(loss)
            optimizer.step()
    return (rows @ directions.detach().T).argmax(dim=1)


def objective(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    """What is minimized: λ · mean entropy of unlabeled rows - entropy of the mean + cross-entropy
    of labeled rows.

    `logits` (N, K), `labels` (N,) with -1 for unlabeled.
    """
    log_p = logits.log_softmax(dim=1)
    probabilities = log_p.exp()
    is_unlabeled = labels == UNLABELED
    entropies = -(probabilities * log_p).sum(dim=1)  # (N,)
    unsure = (entropies * is_unlabeled).sum() / is_unlabeled.sum().clamp_min(1)
    return weight * unsure - entropy_of_mean(probabilities) + labeled_cross_entropy(logits, labels)


METHOD = Method(
    settings=PimSettings,
    title="PIM",
    model=Gcd,
    cluster=cluster,
)
