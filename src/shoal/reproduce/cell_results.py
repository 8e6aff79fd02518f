"""The result of a cell: scores by hidden labels, which no method ever gets, in one JSON file."""

import json
import math
import platform
from pathlib import Path
from typing import Any, TypedDict

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

Material = list[dict[str, Any]]
"""What a figure is drawn from."""


class Result(TypedDict, total=False):
    """What a cell's file holds; that of a figure has `material` instead of scores."""

    accuracy: dict[str, float]
    """All, known and novel, in percent."""
    n_clusters: int
    true_n_clusters: int
    n_clusters_error: float
    rule: str | None
    """The rule that decided on K; None where K was given, or found in another way."""
    n_shifts: int
    labeled_accuracies: list[float]
    recall: dict[str, float]
    material: Material
    cell: dict[str, object]
    hidden_labels_chose: bool
    epoch: int
    epochs: int
    validation: dict[str, object]
    """Accuracy on the validation images after each epoch, and of the snapshot that was kept."""
    collapse: dict[str, object] | None
    """Whether all embeddings point the same way."""
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
    counts: dict[str, list[float]]
    """Numbers of classes and images of a dataset; not in a file."""


def score(clusters: Ints, images: BenchmarkImages, is_scored: Bools) -> dict[str, float]:
    """All / Known / Novel in percent over the images that are scored, with one matching."""
    accuracy = gcd_accuracy(
        images.truth[is_scored], clusters[is_scored], images.is_known[is_scored]
    )
    return {
        "all": 100 * accuracy.all,
        "known": 100 * accuracy.known,
        "novel": 100 * accuracy.novel,
    }


def recall(embeddings: Tensor, images: BenchmarkImages) -> dict[str, float]:
    """Recall@8 in percent of all, of labeled and of unlabeled queries among all other images.

    That is how the paper's table divides them: its All is the mean of the other two weighted by
    their numbers.
    """
    near = nearest_others(embeddings, embeddings, RECALL_AT)
    is_labeled = images.labels != UNLABELED
    queries = {
        "all": np.ones_like(is_labeled),
        "labeled": is_labeled,
        "unlabeled": ~is_labeled,
    }
    return {
        name: 100 * recall_at_k(near[chosen], images.truth[chosen], images.truth)
        for name, chosen in queries.items()
    }


def nearest_others(queries: Tensor, points: Tensor, count: int) -> Ints:
    """(N, count) the points nearest to each query, without the point of the same row."""
    own = torch.arange(len(points), device=points.device)
    lists = k_nearest(queries, points, min(count, len(points) - 1), exclude=own)
    near: Ints = lists.indices.cpu().numpy()
    return near


def describe(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Result:
    """What was run, on which images, and the validation of the snapshot."""
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
    """Read a cell's file; refuse one that no table can be made of."""
    try:
        content: Result = json.loads(file.read_text(encoding="utf-8"))
        numbers: list[float] = [content["epoch"], len(content["cell"]), len(content["notes"])]
        if "material" not in content:
            numbers += [content["n_clusters"], content["n_clusters_error"]]
            numbers += [content["accuracy"][name] for name in ("all", "known", "novel")]
            numbers += [content["recall"][name] for name in ("all", "labeled", "unlabeled")]
        math.fsum(numbers)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file}: cannot be read as the result of a cell ({error!r}); delete it to run it again"
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
    kept = learned.epoch - 1
    n_clusters = learned.metrics[kept]["n_clusters"]
    return {"accuracy": curve[kept], "n_clusters": n_clusters, "curve": curve}


def _collapse(learned: Representation) -> dict[str, object] | None:
    """Those of the snapshot, or the last bank's.

    A bank is an epoch's first look, so the only one of a training of one epoch shows the head as it
    was drawn.
    """
    if learned.epoch == 0:
        return None
    kept = collapse_statistics(learned.embeddings)
    warning = describe_collapse(kept)
    if not warning and len(learned.metrics) > 1:
        warning = describe_collapse(learned.metrics[-1])
    return {
        "mean_cosine": round(kept["bank_cosine"], 6),
        "rank": round(kept["bank_rank"], 2),
        "warning": warning,
    }
