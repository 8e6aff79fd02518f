"""Selection by HIDDEN labels, as in the released code, for the protocol 'reference' only.

The snapshot and K with the highest accuracy on known classes are chosen, under one matching over
all labels of M selection images, novel classes included; K is at least one more than the number of
known classes. These images are the official test part
or, in the inductive setup, a tenth of the training part, stratified by hidden class.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.encoders.vision import ImageRows
from shoal.training.validation import Validation, ValidationSet

# The sweep ends after this many consecutive K without a gain
PATIENCE = 50


def select_by_hidden_labels(pixels: ImageRows, truth: Ints, is_known: Bools) -> ValidationSet:
    """Return a scorer of snapshots by images and their true classes (M,)."""

    def score(embeddings: Tensor, predicted: Ints | None, n_clusters: int | None) -> Validation:
        if predicted is not None:
            accuracy = gcd_accuracy(truth, predicted, is_known).known
            return Validation(accuracy=accuracy, n_clusters=len(np.unique(predicted)))
        tree = Tree(ward_linkage(embeddings, device=embeddings.device))
        if n_clusters is not None:
            return sweep(tree, [n_clusters], truth, is_known)
        first = min(len(np.unique(truth[is_known])) + 1, tree.n_leaves)
        return sweep(tree, range(first, tree.n_leaves + 1), truth, is_known)

    return ValidationSet(pixels=pixels, score=score)


def sweep(tree: Tree, candidates: Sequence[int], truth: Ints, is_known: Bools) -> Validation:
    """Return the highest accuracy on known classes over K, and the smallest K that reaches it.

    The sweep ends after `PATIENCE` K without a gain.
    """
    best = -1.0
    chosen = candidates[0]
    for n_clusters in candidates:
        clusters = tree.cut(min(n_clusters, tree.n_leaves))
        accuracy = gcd_accuracy(truth, clusters, is_known).known
        if accuracy > best:
            best = accuracy
            chosen = n_clusters
        if n_clusters - chosen >= PATIENCE:
            break
    return Validation(accuracy=best, n_clusters=chosen)


def with_hidden_classes(labels: Ints, truth: Ints) -> Ints:
    """Return (N,) a number for each true class and whether the image is labeled, to hold out a
    share of the labeled and of the unlabeled images of each class."""
    return np.where(labels == UNLABELED, truth + truth.max() + 1, truth)
