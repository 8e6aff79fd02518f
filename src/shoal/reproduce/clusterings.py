"""Second halves of methods by name, for rows that cluster one method's embeddings another's way."""

from dataclasses import replace

import numpy as np
import torch

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import Inference, infer, infer_inductive
from shoal.encoders.embed import ImageRows
from shoal.errors import UsageError
from shoal.methods.catalog import get_method
from shoal.methods.method import Discovery, Representation, Task, n_clusters_to_use, to_numpy
from shoal.reproduce.experiment import Cell
from shoal.training.validation import validate


def cluster_cell(
    learned: Representation, labels: Ints, cell: Cell, *, n_clusters: int | None, device: torch.device
) -> Discovery:
    """Cluster the images a cell was trained on; `n_clusters` None: estimated."""
    if cell.clustering == "one-step":
        if n_clusters is None:
            raise UsageError("one-step clustering: found no number of clusters; it goes with K given only")
        return shifted_by(1, learned, cell, n_clusters, device)
    half = get_method(cell.clustering).cluster
    return half(learned, labels, cell.clustering_settings, n_clusters=n_clusters, device=device)


def shifted_by(n_shifts: int, learned: Representation, cell: Cell, n_clusters: int, device: torch.device) -> Discovery:
    """Shift a fixed number of times, whatever labels say, and cut Ward's tree."""
    nobody = np.full(len(learned.embeddings), UNLABELED, dtype=np.int64)
    settings = replace(cell.clustering_settings.inference, unlabeled_shifts=n_shifts)
    generator = torch.Generator().manual_seed(0)
    found = infer(
        learned.embeddings,
        nobody,
        n_clusters,
        settings,
        attention=learned.attention,
        generator=generator,
        device=device,
    )
    return _discovery(found, learned)


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
    """Cluster images that were not trained on; labeled `validation` rows say when to stop shifting."""
    if cell.clustering != "cms":
        raise UsageError(f"inductive setup: found clustering {cell.clustering!r}, expected 'cms'")
    judges = labels[validation]
    found = infer_inductive(
        learned.embed(unseen),
        learned.embeddings[torch.from_numpy(validation).to(learned.embeddings.device)],
        judges,
        n_clusters_to_use(n_clusters, learned, judges, "validation"),
        cell.clustering_settings.inference,
        attention=learned.attention,
        generator=torch.Generator().manual_seed(0),
        device=device,
    )
    return _discovery(found, learned)


def estimate_again(learned: Representation, task: Task, rule: str) -> Representation:
    """Estimate K on the images that choose, with the snapshot that was kept, where K was given to choose it."""
    if task.judge is not None:
        return replace(learned, n_clusters=task.judge.score(learned.embed(task.judge.pixels), None).n_clusters)
    if task.validation is None:
        return learned
    rows = torch.from_numpy(task.validation).to(learned.embeddings.device)
    found = validate(learned.embeddings[rows], task.labels[task.validation], rule=rule)
    return replace(learned, n_clusters=found.n_clusters, rule=found.rule)


def _discovery(found: Inference, learned: Representation) -> Discovery:
    return Discovery(
        clusters=found.labels,
        n_clusters=found.n_clusters,
        embeddings=to_numpy(learned.embeddings),
        shifted=to_numpy(found.embeddings),
        linkage=found.tree.linkage,
        accuracies=found.accuracies,
        n_shifts=found.n_shifts,
        estimate=found.estimate,
        metrics=learned.metrics,
        epoch=learned.epoch,
    )
