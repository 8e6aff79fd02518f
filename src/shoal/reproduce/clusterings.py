"""What cells do with embeddings that no method does by itself."""

from dataclasses import replace

import numpy as np
import torch

from shoal.arrays import UNLABELED
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.cms import learned_attention
from shoal.reproduce.plan import Cell
from shoal.training.task import Task
from shoal.training.validation import validate


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


def estimate_again(learned: Representation, task: Task, rule: str) -> Representation:
    """Estimate K with the snapshot that was kept, where K was given to choose the snapshot."""
    if task.judge is not None:
        validation = task.judge.score(learned.embed(task.judge.pixels), None)
    elif task.validation is not None:
        rows = torch.from_numpy(task.validation).to(learned.embeddings.device)
        validation = validate(learned.embeddings[rows], task.labels[task.validation], rule=rule)
    else:
        return learned
    return replace(learned, n_clusters=validation.n_clusters, rule=validation.rule)
