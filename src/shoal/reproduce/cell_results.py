"""The result of a cell: scores by hidden labels, which no method sees, in one JSON file."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

import shoal
from shoal.arrays import UNLABELED, nan_to_null
from shoal.checksums import digest_names
from shoal.clustering.matching import recall_at_k
from shoal.clustering.neighbors import k_nearest
from shoal.device import describe_device
from shoal.errors import DataError
from shoal.methods.clusters import Representation
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell
from shoal.settings import Plain, to_dict
from shoal.training.collapse import collapse_statistics, describe_collapse
from shoal.words import count

RECALL_AT = 8

COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("All", "Known", "Novel"),
    "recall": ("All", "Labeled", "Unlabeled"),
    "all": ("All",),
    "n_clusters": ("K", "Err %"),
}
"""The columns of a table by what it measures."""


Result = Plain
"""The content of a cell's file: numbers in percent, and what they were computed from."""


def recall(embeddings: Tensor, images: BenchmarkImages) -> dict[str, float]:
    """Return Recall@8 in percent for all, for labeled and for unlabeled queries.

    The paper's table is split the same way: its All is the mean of the other two, weighted by their
    numbers of images.
    """
    same_row = torch.arange(len(embeddings), device=embeddings.device)
    n_neighbors = min(RECALL_AT, len(embeddings) - 1)
    lists = k_nearest(embeddings, embeddings, n_neighbors, exclude=same_row)
    near = lists.indices.cpu().numpy()
    is_labeled = images.labels != UNLABELED
    queries = {"all": slice(None), "labeled": is_labeled, "unlabeled": ~is_labeled}
    return {
        name: 100 * recall_at_k(near[rows], images.truth[rows], images.truth)
        for name, rows in queries.items()
    }


def describe(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Result:
    """Return what was run, on which images, with the validation of the snapshot."""
    collection = images.benchmark.collection
    notes = list(collection.notes)
    if skipped := len(collection) - len(images.labels):
        notes.append(f"{count(skipped, 'image')} could not be decoded")
    return {
        "cell": to_dict(cell),
        "hidden_labels_chose": cell.sees_hidden_labels,
        "epoch": learned.epoch,
        "epochs": len(learned.metrics),
        "validation": nan_to_null([row["validation_accuracy"] for row in learned.metrics]),
        "collapse": _collapse(learned),
        "images": len(images.labels),
        "split_sha256": images.benchmark.split.sha256,
        "names_sha256": digest_names(collection.names, collection.labels),
        "notes": notes,
        "device": describe_device(device),
        "torch": torch.__version__,
        "shoal": shoal.__version__,
    }


def read_result(file: Path) -> Result:
    """Read a cell's file; refuse one that lacks what a table needs."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        for measure in COLUMNS:
            math.fsum(numbers(measure, content))  # raises for anything but numbers
        for name in ("images", "notes", "collapse"):
            content[name]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file}: is not the result of a cell ({error!r}); delete it to run the cell again"
        ) from error
    return content


def numbers(measure: str, result: Result) -> list[float]:
    """Return the numbers of a cell in the columns of a table."""
    if measure == "n_clusters":
        return [result["n_clusters"], result["n_clusters_error"]]
    scores = result["recall"] if measure == "recall" else result["accuracy"]
    return [scores[name.lower()] for name in COLUMNS[measure]]


def _collapse(learned: Representation) -> Plain | None:
    """Return the collapse statistics of the snapshot, with a warning if it or the last bank has
    collapsed."""
    if learned.epoch == 0:
        return None
    statistics = collapse_statistics(learned.embeddings)
    warning = describe_collapse(statistics)
    # A bank is filled at the start of an epoch: the first one shows the untrained head.
    if len(learned.metrics) > 1:
        warning = warning or describe_collapse(learned.metrics[-1])
    return {
        "mean_cosine": statistics["bank_cosine"],
        "rank": statistics["bank_rank"],
        "warning": warning,
    }
