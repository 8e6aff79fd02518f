"""A classifier with an output for each cluster, the losses that methods with one share, and how
they answer.

N rows, B images of a batch, D entries of a feature, K outputs.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints
from shoal.encoders.head import unit
from shoal.encoders.vision import Encoder
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.method import TrainedSettings
from shoal.training.model import Epoch, Model, TaskShape, numbered_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierSettings(TrainedSettings):
    """What the settings of a method with a classifier of features have besides."""

    start: Literal["random", "images"] = "random"
    """Where the classifier's outputs begin: at random directions, as published, or those of known
    classes at the mean of their labeled images and the others at unlabeled images. Where all
    features lie on one side, as those of an encoder that ends in a ReLU do, random outputs are far
    from every image, and novel ones may never win."""


C = TypeVar("C", bound=ClassifierSettings)


class CosineClassifier(nn.Module):
    """A direction for each cluster; its output for a unit row is their cosine."""

    def __init__(self, dim: int, n_clusters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_clusters, dim))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, rows: Tensor) -> Tensor:
        """Cosines (N, K) of unit rows (N, D), in float32 whatever the precision of the rows."""
        with torch.autocast(rows.device.type, enabled=False):
            return F.linear(rows.float(), F.normalize(self.weight, dim=1))

    @torch.no_grad()
    def start_at_images(
        self, rows: Tensor, labels: Tensor, n_known: int, generator: torch.Generator
    ) -> None:
        """Put the outputs of known classes at the means of their rows, the others at unlabeled rows
        drawn by chance.

        Unit rows (n, D), labels (n,). A classifier with more outputs than there are unlabeled rows
        repeats some.
        """
        sums = rows.new_zeros(n_known, rows.shape[1])
        is_labeled = labels != UNLABELED
        sums.index_add_(0, labels[is_labeled], rows[is_labeled])
        unlabeled = rows[~is_labeled]
        n_novel = len(self.weight) - n_known if len(unlabeled) else 0
        drawn = torch.randperm(len(unlabeled), generator=generator).repeat(
            1 + n_novel // max(1, len(unlabeled))
        )
        novel = unlabeled[drawn[:n_novel].to(rows.device)]
        # As long as random outputs are, so that the learning rate means the same.
        length = self.weight.norm(dim=1).mean()
        self.weight[:n_known] = length * F.normalize(sums, dim=1)
        self.weight[n_known : n_known + n_novel] = length * novel


class ClassifierModel(Model[C]):
    """A model that answers by the largest output of a classifier of the tail's features."""

    def __init__(self, encoder: Encoder, settings: C, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.classifier = CosineClassifier(encoder.feature_dim, n_outputs(shape))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Unit features (b, C), and cosines with the clusters, (b, K)."""
        features = unit(self.encoder.tail(inputs).float())
        return {"features": features, "cosines": self.classifier(features)}

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Start the classifier at images, if that is wanted, before the first epoch."""
        if self.settings.start == "images" and epoch.number == 0:
            rows = epoch.embed().float()
            self.classifier.start_at_images(rows, epoch.labels, self.shape.n_known, epoch.generator)
        return {}

    def predict(self, embeddings: Tensor) -> Tensor:
        """The cluster with the largest cosine."""
        cosines: Tensor = self.classifier(embeddings)  # (N, K)
        return cosines.argmax(dim=1)


def n_outputs(shape: TaskShape) -> int:
    """K of a task, which a classifier needs."""
    assert shape.n_clusters is not None, "a method with a classifier is told K"
    assert shape.n_clusters >= shape.n_known, shape
    return shape.n_clusters


def labeled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (N, K) over the rows with a label (N,); 0 where no row has
    one."""
    is_labeled = labels != UNLABELED
    losses = F.cross_entropy(logits, labels.clamp_min(0), reduction="none")  # (N,)
    # A sum and not a selection of rows: the shape of every tensor stays the same, so nothing waits
    # for the device.
    return (losses * is_labeled).sum() / is_labeled.sum().clamp_min(1)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over rows of the cross-entropy of logits (N, K) with target probabilities (N, K)."""
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


def entropy_of_mean(probabilities: Tensor) -> Tensor:
    """The entropy of the mean of rows (N, K) of probabilities: log K where all clusters are used
    alike."""
    mean = probabilities.mean(dim=0)  # (K,)
    return -(mean * mean.clamp_min(1e-12).log()).sum()


def cluster_by_classifier(
    learned: Representation,
    labels: Ints,
    settings: TrainedSettings,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """The answer of a method that learns a classifier: the cluster that it predicts; outputs
    without images are none.

    K was decided before training. Where labels bind, a labeled image is in the cluster of its
    class, whatever is predicted. On embeddings that no classifier was trained on, Algorithm 1
    answers instead.
    """
    if learned.predicted is None:
        return shift_and_cut(
            learned,
            labels,
            settings.inference,
            n_clusters=n_clusters,
            seed=settings.training.seed,
            device=device,
        )
    predicted = learned.predicted
    unlinked = None
    bound = _own_outputs(learned, labels) if settings.inference.must_link else None
    if bound is not None:
        unlinked = np.unique(predicted, return_inverse=True)[1]
        predicted = bound
    used, clusters = np.unique(predicted, return_inverse=True)
    return replace(
        learned.answer(clusters, len(used)), predicted=learned.predicted, unlinked=unlinked
    )


def _own_outputs(learned: Representation, labels: Ints) -> Ints | None:
    """(N,) the output of its class for a labeled image, what is predicted for another.

    None where training has not seen all classes, so that their outputs are not those of the loss.
    """
    assert learned.predicted is not None
    given = numbered_labels(labels)
    n_classes = int(given.max(initial=UNLABELED)) + 1
    if learned.model is None or n_classes != learned.model.shape.n_known:
        return None
    return np.where(given == UNLABELED, learned.predicted, given)
