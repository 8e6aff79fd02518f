"""Selection by HIDDEN labels, as in the released code, for the protocol 'reference' only.

The snapshot and K with the highest accuracy on known classes are chosen, under one matching over
all labels of M selection images, novel classes included. These images are the official test part
or, in the inductive setup, a tenth of the training part, stratified by hidden class.
"""

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.splits import hold_out_validation
from shoal.encoders.embed import ImageRows
from shoal.training.validation import Validation, ValidationSet

PATIENCE = 50
"""The sweep ends after this many consecutive K without a gain."""


def select_by_hidden_labels(pixels: ImageRows, truth: Ints, is_known: Bools) -> ValidationSet:
    """Return a scorer of snapshots by images and their true classes (M,)."""

    def score(embeddings: Tensor, predicted: Ints | None, n_clusters: int | None) -> Validation:
        if predicted is not None:
            accuracy = gcd_accuracy(truth, predicted, is_known).known
            return Validation(accuracy=accuracy, n_clusters=len(np.unique(predicted)))
        tree = Tree(ward_linkage(embeddings, device=embeddings.device))
        if n_clusters is None:
            return sweep(tree, truth, is_known)
        cut = min(n_clusters, tree.n_leaves)
        return Validation(
            accuracy=_known_accuracy(tree, cut, truth, is_known), n_clusters=n_clusters
        )

    return ValidationSet(pixels=pixels, score=score)


def sweep(tree: Tree, truth: Ints, is_known: Bools) -> Validation:
    """Return the highest accuracy on known classes over K, and the smallest K that reaches it.

    K starts at one more than the known classes; the sweep ends after `PATIENCE` K without a gain.
    """
    first = min(len(np.unique(truth[is_known])) + 1, tree.n_leaves)
    best = -1.0
    chosen = first
    for n_clusters in range(first, tree.n_leaves + 1):
        accuracy = _known_accuracy(tree, n_clusters, truth, is_known)
        if accuracy > best:
            best = accuracy
            chosen = n_clusters
        if n_clusters - chosen >= PATIENCE:
            break
    return Validation(accuracy=best, n_clusters=chosen)


def split_by_hidden_classes(
    labels: Ints, truth: Ints, *, share: float, rng: np.random.Generator
) -> Ints:
    """Return held-out rows: a share of the labeled and of the unlabeled images of each class."""
    # (N,) a number for each class and whether the image is labeled
    groups = np.where(labels == UNLABELED, truth + truth.max() + 1, truth)
    return hold_out_validation(groups, share=share, rng=rng)


def _known_accuracy(tree: Tree, n_clusters: int, truth: Ints, is_known: Bools) -> float:
    return gcd_accuracy(truth, tree.cut(n_clusters), is_known).known
