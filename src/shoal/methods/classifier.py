"""A classifier with an output for each cluster, the losses that methods with one share, and how
they cluster.

Shapes: N rows, B images per batch, D dimensions of a feature, K outputs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.encoders.vision import Encoder, unit
from shoal.methods.method import Discovery, Representation, TrainedSettings, shift_and_cut, to_numpy
from shoal.training.model import Epoch, Model, TaskShape, Tensors, consecutive_labels


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(TrainedSettings):
    """Settings of a method with a cosine classifier of the tail's features."""

    classifier_init: Literal["random", "images"] = "random"
    """Initial weights: random, as published, or the mean of the labeled images for a known class
    and an unlabeled image for any other. The features of an encoder that ends in a ReLU are all
    positive, so random weights are far from every image, and novel outputs may never win."""


class CosineClassifier(nn.Module):
    """A linear classifier with unit weights; for unit rows its outputs are cosines."""

    def __init__(self, dim: int, n_clusters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_clusters, dim))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, rows: Tensor) -> Tensor:
        """Return cosines (N, K) of unit rows (N, D), in float32 also under autocast."""
        with torch.autocast(rows.device.type, enabled=False):
            return F.linear(rows.float(), F.normalize(self.weight, dim=1))

    @torch.no_grad()
    def start_at_images(
        self, rows: Tensor, labels: Tensor, n_known: int, generator: torch.Generator
    ) -> None:
        """Set the weights of known classes to the means of their rows, the others to random
        unlabeled rows, as far as there are enough.

        Unit rows (n, D), labels (n,).
        """
        sums = rows.new_zeros(n_known, rows.shape[1])
        is_labeled = labels != UNLABELED
        sums.index_add_(0, labels[is_labeled], rows[is_labeled])
        unlabeled = rows[~is_labeled]
        order = torch.randperm(len(unlabeled), generator=generator)
        novel = unlabeled[order[: len(self.weight) - n_known].to(rows.device)]
        # The norm of random weights, so that a learning rate has the same effect.
        norm = self.weight.norm(dim=1).mean()
        self.weight[:n_known] = norm * F.normalize(sums, dim=1)
        self.weight[n_known : n_known + len(novel)] = norm * novel


class ClassifierModel(Model):
    """A model with a cosine classifier of the tail's features."""

    def __init__(self, encoder: Encoder, settings: ClassifierSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.classifier = CosineClassifier(encoder.feature_dim, n_outputs(shape))

    def forward(self, inputs: Tensor) -> Tensors:
        """Return unit features (b, D), and cosines with the clusters, (b, K)."""
        features = unit(self.encoder.tail(inputs).float())
        return {"features": features, "cosines": self.classifier(features)}

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        if self.settings.classifier_init == "images" and epoch.number == 0:
            rows = epoch.embed()
            self.classifier.start_at_images(rows, epoch.labels, self.shape.n_known, epoch.generator)
        return {}

    def predict(self, embeddings: Tensor) -> Tensor:
        return self.classifier(embeddings).argmax(dim=1)  # of (N, K)


def n_outputs(shape: TaskShape) -> int:
    assert shape.n_clusters is not None, "a method with a classifier needs K"
    return shape.n_clusters


def labeled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (N, K) over rows with a label (N,); 0 without any."""
    is_labeled = labels != UNLABELED
    losses = F.cross_entropy(logits, labels.clamp_min(0), reduction="none")  # (N,)
    # A weighted sum instead of a selection of rows: shapes do not depend on values, so the host
    # need not wait for the device.
    return (losses * is_labeled).sum() / is_labeled.sum().clamp_min(1)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (N, K) with target probabilities (N, K)."""
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


def entropy_of_mean(probabilities: Tensor) -> Tensor:
    """Return the entropy of the mean of probabilities (N, K); log K if clusters are balanced."""
    mean = probabilities.mean(dim=0)  # (K,)
    return -(mean * mean.clamp_min(1e-12).log()).sum()


def cluster_by_classifier(
    learned: Representation,
    labels: Ints,
    settings: TrainedSettings,
    n_clusters: int | None,
) -> Discovery:
    """Cluster by the predictions of the learned classifier; outputs without images are dropped.

    With `inference.must_link`, a labeled image is in the cluster of its class. Embeddings without
    predictions are clustered by Algorithm 1.
    """
    predicted = learned.predicted
    if predicted is None:
        return shift_and_cut(
            learned,
            labels,
            settings.inference,
            n_clusters=n_clusters,
            seed=settings.training.seed,
        )
    unlinked = None
    known = consecutive_labels(labels)
    n_classes = int(known.max(initial=UNLABELED)) + 1
    # Outputs have the numbers of the classes only if training has seen all of these.
    knows_classes = learned.model is not None and learned.model.shape.n_known == n_classes
    if settings.inference.must_link and knows_classes:
        unlinked = np.unique(predicted, return_inverse=True)[1]
        predicted = np.where(known == UNLABELED, predicted, known)
    used, clusters = np.unique(predicted, return_inverse=True)
    return Discovery(
        clusters=clusters,
        n_clusters=len(used),
        embeddings=to_numpy(learned.embeddings),
        predicted=learned.predicted,
        unlinked=unlinked,
    )
