"""Clusterings and estimates of K that are not part of a method."""

from dataclasses import replace

import numpy as np

from shoal.arrays import UNLABELED
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.cms import learned_attention
from shoal.reproduce.plan import Cell
from shoal.training.task import Task
from shoal.training.validation import validate


def cluster_after(n_shifts: int, learned: Representation, cell: Cell, n_clusters: int) -> Discovery:
    """Shift a fixed number of times, regardless of labels, and cut Ward's tree.

    There are fewer shifts if a further one would leave fewer distinct embeddings than clusters.
    """
    no_labels = np.full(len(learned.embeddings), UNLABELED, dtype=np.int64)
    return shift_and_cut(
        replace(learned, n_shifts=n_shifts),
        no_labels,
        cell.clustering_settings.inference,
        n_clusters=n_clusters,
        seed=0,
        attention=learned_attention(learned),
    )


def estimate_k(learned: Representation, task: Task, rule: str) -> Representation:
    """Return the representation with an estimate of K, for a snapshot chosen at the given K."""
    if task.validation_set is not None:
        embeddings = learned.embed(task.validation_set.pixels)
        validation = task.validation_set.score(embeddings, None, None)
    else:
        rows = task.validation
        assert rows is not None
        validation = validate(learned.embeddings[rows], task.labels[rows], rule=rule)
    return replace(learned, n_clusters=validation.n_clusters, rule=validation.rule)
