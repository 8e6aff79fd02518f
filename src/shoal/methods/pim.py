"""PIM (Chiaroni et al., ICCV 2023): GCD's features, clustered by parametric information
maximization.

Training is that of GCD. Inference: a linear classifier starts from the centers of semi-supervised
k-means and is fitted to all features together. Its objective is confident predictions for unlabeled
images (low conditional entropy), balanced clusters (high marginal entropy) and the given labels
(cross-entropy). The weight λ of the conditional entropy determines how unequal clusters may be; it
is the λ with the highest labeled accuracy of a fit that sees no labels.

Shapes: N images, D columns of an embedding, K clusters, C known classes.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.matching import matched_accuracy
from shoal.methods.classifier import entropy_of_mean, labeled_cross_entropy
from shoal.methods.gcd import Gcd, GcdSettings, cluster_by_kmeans, cluster_points, plain_kmeans
from shoal.methods.method import Method, Representation
from shoal.settings import Count, NonNegative, Positive, Range
from shoal.training.model import consecutive_labels

# The λ for which the objective without labels is the mutual information of images and clusters
MUTUAL_INFORMATION = 1.0


@dataclass(frozen=True, kw_only=True)
class PimSettings(GcdSettings):
    """Settings of PIM; `recipes/pim` holds the published values.

    `n_init` counts the starts of the k-means whose centers initialize the classifier.
    """

    search_n_clusters: bool = True
    """Whether K is estimated by the highest labeled accuracy of a classifier fitted without labels,
    found by Brent's method; else by `inference.rule`. In `shoal discover`, the K of the frozen
    result comes first."""
    logit_scale: Positive = 25.0
    """Factor of the classifier's logits."""
    conditional_entropy_weights: Annotated[
        tuple[float, ...],
        Range("some λ of 0 or more, say [0.5]", lambda values: min(values, default=-1) >= 0),
    ] = tuple(round(0.05 * step, 2) for step in range(2, 21))
    """The λ that are tried, each at the cost of a fit."""
    fit_steps: Count = 1000
    """Steps of Adam over all images; each costs three products of N × D × K."""
    fit_lr: Positive = 0.001
    fit_weight_decay: NonNegative = 0.01

    def find_n_clusters(self, learned: Representation, points: Tensor, labels: Ints) -> int:
        """Return K by the labeled accuracy of the classifier that maximizes mutual information on
        points (N, D)."""

        def find(n_clusters: int) -> Tensor:
            initial = plain_kmeans(points, n_clusters, self.training.seed)
            return fit(points, initial.centers, None, MUTUAL_INFORMATION, self)

        return self.search(find, labels)

    def assign(self, points: Tensor, labels: Ints, n_clusters: int) -> Tensor:
        """Return clusters (N,) of unit points (N, D) by a classifier that is fitted to them;
        labeled ones keep their class."""
        weight = choose_weight(points, labels, n_clusters, self)
        initial = cluster_points(points, labels, n_clusters, self)
        known = torch.from_numpy(consecutive_labels(labels)).to(points.device)  # (N,)
        predicted = fit(points, initial.centers, known, weight, self)
        return torch.where(known == UNLABELED, predicted, known)


def choose_weight(points: Tensor, labels: Ints, n_clusters: int, settings: PimSettings) -> float:
    """Return the λ with the highest labeled accuracy of a fit that sees no labels, the first on
    ties; the middle one without labels or a choice."""
    weights = settings.conditional_entropy_weights
    is_labeled = labels != UNLABELED
    if len(weights) == 1 or not is_labeled.any():
        return weights[len(weights) // 2]
    initial = plain_kmeans(points, n_clusters, settings.training.seed)
    accuracies = []
    for weight in weights:
        clusters = fit(points, initial.centers, None, weight, settings).cpu().numpy()
        accuracies.append(matched_accuracy(labels[is_labeled], clusters[is_labeled]))
    return weights[int(np.argmax(accuracies))]


def fit(
    points: Tensor, centers: Tensor, labels: Tensor | None, weight: float, settings: PimSettings
) -> Tensor:
    """Return clusters (N,) of unit points (N, D) by a classifier that starts from centers (K, D).

    `labels` (N,) are 0 … C-1, -1 for unlabeled; None: no labels.
    """
    if labels is None:
        labels = torch.full((len(points),), UNLABELED, device=points.device)
    rows = points.float()
    weights = F.normalize(centers.float(), dim=1).requires_grad_()  # (K, D)
    optimizer = torch.optim.Adam(
        [weights], lr=settings.fit_lr, weight_decay=settings.fit_weight_decay
    )
    with torch.enable_grad():
        for _ in range(settings.fit_steps):
            optimizer.zero_grad()
            loss = objective(settings.logit_scale * rows @ weights.T, labels, weight)
            torch.autograd.backward(loss)
            optimizer.step()
    return (rows @ weights.detach().T).argmax(dim=1)


def objective(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Return what is minimized: λ · conditional entropy of unlabeled rows - marginal entropy +
    cross-entropy of labeled rows.

    `logits` (N, K), `labels` (N,) with -1 for unlabeled.
    """
    log_p = logits.log_softmax(dim=1)
    probabilities = log_p.exp()
    is_unlabeled = labels == UNLABELED
    entropies = -(probabilities * log_p).sum(dim=1)  # (N,)
    conditional_entropy = (entropies * is_unlabeled).sum() / is_unlabeled.sum().clamp_min(1)
    marginal_entropy = entropy_of_mean(probabilities)
    cross_entropy = labeled_cross_entropy(logits, labels)
    return weight * conditional_entropy - marginal_entropy + cross_entropy


METHOD = Method(
    settings=PimSettings,
    title="PIM",
    model=Gcd,
    cluster=cluster_by_kmeans,
)
