"""Selection as the released code does it, by HIDDEN labels, for the protocol 'reference' alone.

The snapshot and K are those of the highest accuracy on known classes, under one matching over all
labels of the images it is chosen by, novel classes included. Those images are the official test
part or, in the inductive setup, a tenth of the training part drawn class by hidden class.

M images that choose.
"""

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.splits import hold_out_validation
from shoal.encoders.embed import ImageRows
from shoal.training.validation import Judge, Validation

PATIENCE = 50
"""Numbers of clusters in a row without a gain after which the sweep ends."""


def judge_by_hidden_labels(pixels: ImageRows, truth: Ints, is_known: Bools) -> Judge:
    """Let images with their true classes (M,) choose the snapshot and K."""

    def score(embeddings: Tensor, n_clusters: int | None) -> Validation:
        tree = Tree(ward_linkage(embeddings, device=embeddings.device))
        if n_clusters is None:
            return sweep(tree, truth, is_known)
        cut = min(n_clusters, tree.n_leaves)
        return Validation(
            accuracy=_known_accuracy(tree, cut, truth, is_known), n_clusters=n_clusters
        )

    def score_clusters(clusters: Ints) -> Validation:
        accuracy = gcd_accuracy(truth, clusters, is_known).known
        return Validation(accuracy=accuracy, n_clusters=len(np.unique(clusters)))

    return Judge(pixels=pixels, score=score, score_clusters=score_clusters)


def sweep(tree: Tree, truth: Ints, is_known: Bools) -> Validation:
    """The smallest K of the highest accuracy on known classes, from one more than these up.

    The sweep ends after `PATIENCE` numbers without a gain.
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


def draw_by_hidden_classes(
    labels: Ints, truth: Ints, *, share: float, rng: np.random.Generator
) -> Ints:
    """Rows set aside: a share of each true class, of its labeled and of its unlabeled images."""
    # (N,) labeled or not, and the class
    groups = np.where(labels == UNLABELED, truth + truth.max() + 1, truth)
    return hold_out_validation(groups, share=share, rng=rng).validation


def _known_accuracy(tree: Tree, n_clusters: int, truth: Ints, is_known: Bools) -> float:
    return gcd_accuracy(truth, tree.cut(n_clusters), is_known).known
