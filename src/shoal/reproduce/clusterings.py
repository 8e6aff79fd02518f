"""Clustering for a cell, whose embeddings may be one method's and the clustering another's."""

from dataclasses import replace

import numpy as np
import torch

from shoal.arrays import UNLABELED, Ints
from shoal.encoders.embed import ImageRows
from shoal.methods.clusters import (
    Discovery,
    Representation,
    nearest_clusters,
    shift_and_cut,
    to_numpy,
)
from shoal.methods.cms import learned_attention
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.reproduce.experiments import ONE_STEP
from shoal.reproduce.plan import Cell
from shoal.training.validation import validate


def cluster_cell(
    learned: Representation,
    labels: Ints,
    cell: Cell,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Cluster the images a cell was trained on; `n_clusters` None: estimated."""
    if cell.clustering == ONE_STEP:
        assert n_clusters is not None, "it goes with K given only"
        return shifted_by(1, learned, cell, n_clusters, device)
    method = get_method(cell.clustering)
    settings = cell.clustering_settings
    return method.cluster(learned, labels, settings, n_clusters=n_clusters, device=device)


def shifted_by(
    n_shifts: int, learned: Representation, cell: Cell, n_clusters: int, device: torch.device
) -> Discovery:
    """Shift a fixed number of times, whatever labels say, and cut Ward's tree."""
    no_labels = np.full(len(learned.embeddings), UNLABELED, dtype=np.int64)
    inference = replace(cell.clustering_settings.inference, unlabeled_shifts=n_shifts)
    return shift_and_cut(
        learned,
        no_labels,
        inference,
        n_clusters=n_clusters,
        seed=0,
        device=device,
        attention=learned_attention(learned),
    )


def cluster_unseen(
    learned: Representation,
    unseen: ImageRows,
    validation: Ints,
    labels: Ints,
    cell: Cell,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Cluster images that were not trained on, by the nearest cluster if the method cannot."""
    method = get_method(cell.clustering)
    settings = cell.clustering_settings
    rows = learned.embed(unseen)
    if method.cluster_unseen is not None:
        return method.cluster_unseen(
            learned, rows, labels, validation, settings, n_clusters=n_clusters, device=device
        )
    discovery = method.cluster(learned, labels, settings, n_clusters=n_clusters, device=device)
    return replace(
        discovery,
        clusters=nearest_clusters(learned, discovery, rows),
        embeddings=to_numpy(rows),
        predicted=None,
        shifted=None,
        linkage=None,
    )


def estimate_again(learned: Representation, task: Task, rule: str) -> Representation:
    """Estimate K with the snapshot that was kept, where K was given to choose the snapshot."""
    if task.judge is not None:
        validation = task.judge.score(learned.embed(task.judge.pixels), None)
        return replace(learned, n_clusters=validation.n_clusters)
    if task.validation is None:
        return learned
    rows = torch.from_numpy(task.validation).to(learned.embeddings.device)
    validation = validate(learned.embeddings[rows], task.labels[task.validation], rule=rule)
    return replace(learned, n_clusters=validation.n_clusters, rule=validation.rule)
