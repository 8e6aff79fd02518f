"""The result of a cell: one JSON file, written whole, checked when it is read."""

import json
import math
import platform
from pathlib import Path
from typing import Any

import torch

import shoal
from shoal.errors import DataError
from shoal.files import write_text
from shoal.methods.clusters import Representation
from shoal.reproduce.loaded_dataset import BenchmarkImages
from shoal.reproduce.plan import Cell
from shoal.training.collapse import collapse_statistics, describe_collapse

Result = dict[str, Any]
"""What a cell's file holds."""

HOLDS = ("cell", "epoch", "notes")
"""What every cell's file has, beside what a figure is drawn from, or scores and K."""
MATERIAL = "material"
NUMBERS = ("n_clusters", "n_clusters_error")
SCORES = {"accuracy": ("all", "known", "novel"), "recall": ("all", "labeled", "unlabeled")}


def describe(
    cell: Cell, learned: Representation, images: BenchmarkImages, device: torch.device
) -> Result:
    """What a cell's file says besides scores: what was run, on which images, and what validation said."""
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
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU {platform.machine()}",
        "torch": torch.__version__,
        "shoal": shoal.__version__,
    }


def write_result(file: Path, result: Result) -> None:
    """Write a cell's file."""
    write_text(file, json.dumps(result, indent=1) + "\n")


def read_result(file: Path) -> Result:
    """Read a cell's file; one that a table cannot be made of is refused by its name."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        problem = f"it lacks {', '.join(_missing(content))}" if _missing(content) else None
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem is not None:
        raise DataError(
            f"{file}: cannot be read as the result of a cell ({problem}); delete it to run it again"
        )
    checked: Result = content
    return checked


def _missing(content: Any) -> list[str]:
    """What a cell's file should have and has not."""
    if not isinstance(content, dict):
        return ["everything"]
    missing = [name for name in HOLDS if name not in content]
    if MATERIAL in content:
        return missing
    missing += [name for name in NUMBERS if not _is_number(content.get(name))]
    for group, names in SCORES.items():
        scores = content.get(group)
        has = [name for name in names if isinstance(scores, dict) and _is_number(scores.get(name))]
        missing += [f"{group}.{name}" for name in names if name not in has]
    return missing


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _validation(learned: Representation) -> Result:
    """What the validation images said about the snapshot that was kept."""
    if learned.epoch == 0 or not learned.metrics:
        return {}
    accuracies = [row["validation_accuracy"] for row in learned.metrics]
    curve = [
        None if value is None or math.isnan(value) else round(100 * value, 2)
        for value in accuracies
    ]
    kept = learned.epoch - 1
    return {
        "accuracy": curve[kept],
        "n_clusters": learned.metrics[kept]["n_clusters"],
        "curve": curve,
    }


def _collapse(learned: Representation) -> Result | None:
    """Whether all embeddings point the same way: those of the snapshot, whatever the method, or the last bank's.

    A bank is an epoch's first look, so the only one of a training of one epoch shows the head as it was drawn.
    """
    if learned.epoch == 0:
        return None
    kept = collapse_statistics(learned.embeddings)
    last = learned.metrics[-1] if len(learned.metrics) > 1 else {}
    return {
        "mean_cosine": round(kept["bank_cosine"], 6),
        "rank": round(kept["bank_rank"], 2),
        "warning": describe_collapse(kept) or describe_collapse(last),
    }
