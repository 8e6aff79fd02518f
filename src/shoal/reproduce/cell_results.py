"""The result of a cell: scores by hidden labels, which no method sees, in one JSON file."""

import json
import math
import platform
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy, recall_at_k
from shoal.clustering.neighbors import k_nearest
from shoal.errors import DataError
from shoal.methods.clusters import Representation
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell
from shoal.training.collapse import collapse_statistics, describe_collapse

RECALL_AT = 8


class Result(TypedDict, total=False):
    """The content of a cell's file."""

    accuracy: dict[str, float]
    """All, known and novel, in percent."""
    n_clusters: int
    true_n_clusters: int
    n_clusters_error: float
    n_clusters_source: str
    """'given', or how K was estimated."""
    n_shifts: int
    labeled_accuracies: list[float]
    recall: dict[str, float]
    cell: dict[str, object]
    hidden_labels_chose: bool
    epoch: int
    epochs: int
    validation: dict[str, object]
    """Accuracy on the validation images after each epoch, and that of the chosen snapshot."""
    collapse: dict[str, object] | None
    """Whether all embeddings point in nearly the same direction."""
    images: int
    images_skipped: int
    split_sha256: str
    names_sha256: str
    notes: list[str]
    device: str
    torch: str
    shoal: str
    seconds_training: float
    seconds_clustering: float


def score(clusters: Ints, images: BenchmarkImages, is_scored: Bools) -> dict[str, float]:
    """Return All / Known / Novel accuracy in percent over the scored images, with one matching."""
    accuracy = gcd_accuracy(
        images.truth[is_scored], clusters[is_scored], images.is_known[is_scored]
    )
    return {
        "all": 100 * accuracy.all,
        "known": 100 * accuracy.known,
        "novel": 100 * accuracy.novel,
    }


def recall(embeddings: Tensor, images: BenchmarkImages) -> dict[str, float]:
    """Return Recall@8 in percent for all, for labeled and for unlabeled queries.

    The paper's table is split the same way: its All is the mean of the other two, weighted by their
    numbers of images.
    """
    same_row = torch.arange(len(embeddings), device=embeddings.device)
    n_neighbors = min(RECALL_AT, len(embeddings) - 1)
    lists = k_nearest(embeddings, embeddings, n_neighbors, exclude=same_row)
    near: Ints = lists.indices.cpu().numpy()
    is_labeled = images.labels != UNLABELED
    queries = {
        "all": np.ones_like(is_labeled),
        "labeled": is_labeled,
        "unlabeled": ~is_labeled,
    }
    return {
        name: 100 * recall_at_k(near[rows], images.truth[rows], images.truth)
        for name, rows in queries.items()
    }


def describe(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Result:
    """Return what was run, on which images, with the validation of the snapshot."""
    device_name = f"CPU {platform.machine()}"
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    return {
        "cell": cell.identity,
        "hidden_labels_chose": cell.sees_hidden_labels,
        "epoch": learned.epoch,
        "epochs": len(learned.metrics),
        "validation": _validation(learned),
        "collapse": _collapse(learned),
        "images": len(images.labels),
        "images_skipped": images.n_skipped,
        "split_sha256": images.split_sha256,
        "names_sha256": images.names_sha256,
        "notes": list(images.notes),
        "device": device_name,
        "torch": torch.__version__,
        "shoal": shoal.__version__,
    }


def read_result(file: Path) -> Result:
    """Read a cell's file; refuse one that lacks what a table needs."""
    try:
        content: Result = json.loads(file.read_text(encoding="utf-8"))
        numbers: list[float] = [content["epoch"], len(content["cell"]), len(content["notes"])]
        numbers += [content["n_clusters"], content["n_clusters_error"]]
        numbers += [content["accuracy"][name] for name in ("all", "known", "novel")]
        numbers += [content["recall"][name] for name in ("all", "labeled", "unlabeled")]
        math.fsum(numbers)  # raises for anything but numbers
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file}: is not the result of a cell ({error!r}); delete it to run the cell again"
        ) from error
    return content


def _validation(learned: Representation) -> dict[str, object]:
    if learned.epoch == 0 or not learned.metrics:
        return {}
    curve: list[float | None] = []
    for row in learned.metrics:
        accuracy = row["validation_accuracy"]
        if accuracy is None or math.isnan(accuracy):
            curve.append(None)
        else:
            curve.append(round(100 * accuracy, 2))
    snapshot = learned.epoch - 1
    n_clusters = learned.metrics[snapshot]["n_clusters"]
    return {"accuracy": curve[snapshot], "n_clusters": n_clusters, "curve": curve}


def _collapse(learned: Representation) -> dict[str, object] | None:
    """Return the collapse statistics of the snapshot, with a warning if it or the last bank has
    collapsed."""
    if learned.epoch == 0:
        return None
    statistics = collapse_statistics(learned.embeddings)
    warning = describe_collapse(statistics)
    # A bank is filled at the start of an epoch: the first one shows the untrained head.
    if not warning and len(learned.metrics) > 1:
        warning = describe_collapse(learned.metrics[-1])
    return {
        "mean_cosine": round(statistics["bank_cosine"], 6),
        "rank": round(statistics["bank_rank"], 2),
        "warning": warning,
    }
