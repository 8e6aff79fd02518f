"""Tune a method on CUB-200 by a grid search that uses only the labels of labeled images.

    python benchmarks/tuning.py DATA gpc training.lr=0.003,0.01 loss.temperature=0.1,0.2 --out DIR

All labels of a third of the known classes, and a fifth of the labels of the others, are held out.
The method trains on the whole collection with the remaining labels and K given, and is scored on
the held-out labels: All / Known / Novel as in the benchmark, but without its hidden labels. Other
settings are those of the default recipe. --workers processes share a GPU. Finished configurations
in --out are not run again.
"""

import argparse
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
import yaml

from records import write_table
from shoal.arrays import UNLABELED
from shoal.clustering.matching import gcd_accuracy
from shoal.device import choose_device
from shoal.methods.registry import change_settings, get_method, load_recipe
from shoal.reproduce.loaded_dataset import LoadedDataset
from shoal.training.inputs import Task

NOVEL_SHARE = 1 / 3
HELD_OUT_SHARE = 0.2

Changes = dict[str, object]


@dataclass(frozen=True)
class HeldOut:
    """The labels that the method sees, and those held out."""

    labels: np.ndarray  # (N,) for training, -1 for unlabeled
    rows: np.ndarray  # (J,) images whose labels are held out
    truth: np.ndarray  # (J,) these labels
    is_known: np.ndarray  # (J,) whether training sees labels of their class


def hold_out(labels: np.ndarray, seed: int) -> HeldOut:
    """Hold out all labels of a third of the classes, and a fifth of the labels of the others."""
    rng = np.random.default_rng((seed, 7))
    classes = rng.permutation(np.unique(labels[labels != UNLABELED]))
    novel = classes[: round(NOVEL_SHARE * len(classes))]
    remaining = labels.copy()
    for label in classes:
        members = rng.permutation(np.flatnonzero(labels == label))
        if label not in novel:
            members = members[: round(HELD_OUT_SHARE * len(members))]
        remaining[members] = UNLABELED
    rows = np.flatnonzero(remaining != labels)
    return HeldOut(remaining, rows, labels[rows], ~np.isin(labels[rows], novel))


def run_configuration(changes: Changes, arguments: argparse.Namespace, data: LoadedDataset) -> None:
    """Train and score one configuration, and write the result."""
    began = time.monotonic()
    method = get_method(arguments.method)
    named = {f"{arguments.method}.{name}": value for name, value in changes.items()}
    base = {"input_size": data.input_size, "training.seed": arguments.seed}
    recipe = load_recipe("default", arguments.method)
    settings = change_settings(recipe, arguments.method, base | named)
    images = data.train
    held_out = hold_out(images.labels, arguments.seed)
    task = Task(pixels=images.pixels, labels=held_out.labels, n_clusters=images.n_classes)
    if not method.reads_images:
        task = data.trunk_outputs.prepare(task, settings)
    learned = method.represent(task, settings, device=data.device)
    found = method.cluster(learned, task.labels, settings, images.n_classes)
    score = gcd_accuracy(held_out.truth, found.clusters[held_out.rows], held_out.is_known)
    result = {
        "changes": changes,
        "accuracy": [round(100 * part, 1) for part in (score.all, score.known, score.novel)],
        "seconds": round(time.monotonic() - began, 1),
    }
    file_of(changes, arguments).write_text(json.dumps(result))
    print(result, flush=True)


def work(worker: int, configurations: list[Changes], arguments: argparse.Namespace) -> None:
    """Run this worker's share of the configurations."""
    device = choose_device(arguments.device)
    torch.set_num_threads(2)
    data = LoadedDataset("cub", arguments.data, device=device, input_size=arguments.input_size)
    for changes in configurations[worker :: arguments.workers]:
        run_configuration(changes, arguments, data)


def file_of(changes: Changes, arguments: argparse.Namespace) -> Path:
    """Return the file of a configuration's result."""
    words = [arguments.method, str(arguments.seed)]
    words += [f"{name}={value}" for name, value in changes.items()]
    return Path(arguments.out, "_".join(words) + ".json")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of the benchmark's images")
    parser.add_argument("method")
    parser.add_argument("values", nargs="*", help="NAME=VALUE,VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--device", default=None)
    parser.add_argument("--record", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = [value.partition("=")[0] for value in arguments.values]
    values = [yaml.safe_load(f"[{value.partition('=')[2]}]") for value in arguments.values]
    configurations = [
        dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)
    ]
    missing = [changes for changes in configurations if not file_of(changes, arguments).exists()]
    mp.spawn(work, (missing, arguments), nprocs=arguments.workers)
    results = [json.loads(file_of(changes, arguments).read_text()) for changes in configurations]
    results.sort(key=lambda result: -result["accuracy"][0])
    rows = ["| configuration | All | Known | Novel | seconds |", "|---|---|---|---|---|"]
    for result in results:
        shown = ", ".join(f"{name} {value}" for name, value in result["changes"].items())
        scores = " | ".join(map(str, result["accuracy"]))
        rows.append(f"| {shown} | {scores} | {result['seconds']} |")
    write_table(rows, arguments.record)


if __name__ == "__main__":
    main()
