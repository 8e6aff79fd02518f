"""The result of a cell: scores by hidden labels, which no method ever gets, in one JSON file."""

import json
import math
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.matching import gcd_accuracy, recall_at_k
from shoal.clustering.neighbors import k_nearest
from shoal.errors import DataError
from shoal.files import write_text
from shoal.methods.clusters import Representation
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell
from shoal.training.collapse import collapse_statistics, describe_collapse

RECALL_AT = 8

Result = dict[str, Any]
"""What a cell's file holds."""


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

    def share(chosen: Bools) -> float:
        return 100 * recall_at_k(near[chosen], images.truth[chosen], images.truth)

    return {
        "all": share(np.ones(len(near), dtype=bool)),
        "labeled": share(is_labeled),
        "unlabeled": share(~is_labeled),
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


def write_result(file: Path, result: Result) -> None:
    """Write a cell's file."""
    write_text(file, json.dumps(result, indent=1) + "\n")


def read_result(file: Path) -> Result:
    """Read a cell's file; refuse one that no table can be made of."""
    try:
        content: Result = json.loads(file.read_text(encoding="utf-8"))
        numbers = []
        if "material" not in content:
            accuracy = content["accuracy"]
            recalls = content["recall"]
            numbers = [content["n_clusters"], content["n_clusters_error"]]
            numbers += [accuracy["all"], accuracy["known"], accuracy["novel"]]
            numbers += [recalls["all"], recalls["labeled"], recalls["unlabeled"]]
        is_whole = {"cell", "epoch", "notes"} <= content.keys()
        is_whole &= all(isinstance(number, int | float) for number in numbers)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(file, repr(error)) from error
    if not is_whole:
        raise _unreadable(file, "some of it is missing or not a number")
    return content


def _unreadable(file: Path, problem: str) -> DataError:
    return DataError(
        f"{file}: cannot be read as the result of a cell ({problem}); delete it to run it again"
    )


def _validation(learned: Representation) -> Result:
    """Accuracy on the validation images after each epoch, and of the snapshot that was kept."""
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


def _collapse(learned: Representation) -> Result | None:
    """Whether all embeddings point the same way: those of the snapshot, or the last bank's.

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
