"""Measure how often novel classes are hidden in other categories, how many of these categories are
marked as mixed, and whether confidence is calibrated.

    shoal embed flowers102 --out flowers102.npz
    python benchmarks/hidden_categories.py flowers102.npz cub200-train.npz --samples 24
    python benchmarks/hidden_categories.py flowers102.zip --samples 6

Embeddings of the frozen encoder are clustered; on an archive, which contains a folder per class,
the encoder is trained; ':50' takes the first 50 images of each class. A sample has 8 to 40 classes,
half or 70 % of them known, with two, five or half of the images of each known class labeled; K is
estimated. A novel class is hidden if more than half of its images are in a known category, or in
the same novel category as more than half of another novel class. A known category that hides no
class should not be marked. Every sixth image of the sampled classes, and as many images of other
classes, are assigned to the finished run. --unsplit does not split categories.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from accuracy import unpack
from records import write_table
from shoal.clustering.matching import gcd_accuracy
from shoal.data.readers import read_collection
from shoal.data.readers.embeddings import Embeddings, read_embeddings
from shoal.data.readers.tables import encode
from shoal.device import choose_device
from shoal.discovery.api import DiscoveryJob
from shoal.discovery.assign import Assigner
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.reporter import SILENT
from shoal.discovery.results import ClusterSettings, cluster_embeddings
from shoal.discovery.run_job import run_job
from shoal.runs import MIXED_FROM, Assignment, Run

# Number of classes, share of known ones, and labels per known class
KINDS = list(itertools.product((8, 12, 20, 40), (0.5, 0.7), (2, 5, "half")))

# Every sixth image is not in the run but assigned to it
ASSIGNED_EVERY = 6

# Confidence from which an image counts as certain
CERTAIN = 0.9


class FrozenTask:
    """Clusters embeddings of the frozen encoder."""

    def __init__(self, source: Path) -> None:
        self.embeddings = read_embeddings(source)
        self.names = self.embeddings.names
        self._row_of = {name: row for row, name in enumerate(self.names)}

    def _x(self, names: Sequence[str]) -> np.ndarray:
        return self.embeddings.x[[self._row_of[name] for name in names]]

    def run(self, labels: dict[str, str | None], folder: Path, sample: int, split: bool) -> Run:
        """Cluster the images of `labels`, and keep the assigner of the run."""
        names = sorted(labels)
        codes, classes = encode([labels[name] for name in names])
        task = Embeddings(tuple(names), self._x(names), codes, classes, np.arange(len(names)))
        settings = ClusterSettings()
        settings = replace(settings, inference=replace(settings.inference, split_mixtures=split))
        run = cluster_embeddings(task, folder / "run", settings, device="cpu", reporter=SILENT)
        self.assigner = Assigner(run, device="cpu")
        return run

    def assign(self, names: Sequence[str], folder: Path) -> list[Assignment]:
        """Assign new images to the run."""
        return self.assigner.assign_embeddings(names, self._x(names))


class TrainedTask:
    """Discovers the categories of images with training."""

    def __init__(self, root: Path, device: str | None) -> None:
        self.root = root
        self.device = device
        self.names = sorted(f"{file.parent.name}/{file.name}" for file in root.glob("*/*"))

    def _link(self, names: Sequence[str], folder: Path) -> None:
        """Create a folder of links to images in class folders."""
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(self.root / name, folder / name)

    def run(self, labels: dict[str, str | None], folder: Path, sample: int, split: bool) -> Run:
        """Discover the categories of the images of `labels`, and keep the assigner of the run."""
        self._link(list(labels), folder / "images")
        job = DiscoveryJob(
            collection=read_collection(folder / "images", labels),
            settings=choose_settings(seed=sample, split_mixtures=split),
            run=Run(folder / "run"),
            device=choose_device(self.device),
            reporter=SILENT,
        )
        run_job(job)
        self.assigner = Assigner(job.run, device=self.device)
        return job.run

    def assign(self, names: Sequence[str], folder: Path) -> list[Assignment]:
        """Assign new images to the run."""
        self._link(names, folder)
        return self.assigner.assign_images(read_collection(folder, False))[0]


def measure(
    task: FrozenTask | TrainedTask, sample: int, out: Path, *, split: bool
) -> dict[str, Any]:
    """Discover the categories of a sample, and evaluate them by true classes."""
    n_classes, known_share, n_labeled = KINDS[sample % len(KINDS)]
    rng = np.random.default_rng([sample, isinstance(task, TrainedTask)])
    members_of: dict[str, list[str]] = defaultdict(list)
    for name in task.names:
        members_of[name.split("/")[0]].append(name)
    classes = rng.permutation(sorted(members_of)).tolist()
    chosen = classes[:n_classes]
    others = classes[n_classes : n_classes + max(3, n_classes // 2)]
    n_known = round(known_share * n_classes)
    images = [name for label in chosen for name in members_of[label]]
    unseen = [name for label in others for name in members_of[label]]
    new = images[::ASSIGNED_EVERY]
    unseen = rng.permutation(unseen)[: len(new)].tolist()
    names = sorted(set(images) - set(new))
    truth = np.array([chosen.index(name.split("/")[0]) for name in names])
    is_labeled = np.zeros(len(truth), dtype=bool)
    for known in range(n_known):
        members = rng.permutation(np.flatnonzero(truth == known))
        n = len(members) // 2 if n_labeled == "half" else min(int(n_labeled), len(members) - 1)
        is_labeled[members[:n]] = True
    labels = {
        name: chosen[label] if labeled else None
        for name, label, labeled in zip(names, truth, is_labeled, strict=True)
    }
    with tempfile.TemporaryDirectory(dir=out) as path:
        folder = Path(path)
        run = task.run(labels, folder, sample, split)
        found = compare(run, chosen, truth, is_labeled, n_known)
        class_of = found.pop("class_of")
        seen_rows = task.assign(new, folder / "seen classes")
        unseen_rows = task.assign(unseen, folder / "unseen classes")
    certain = [row for row in seen_rows if row.confidence >= CERTAIN]
    n_correct = sum(class_of.get(row.category_id) == row.path.split("/")[0] for row in certain)
    n_certain = len(certain) + sum(row.confidence >= CERTAIN for row in unseen_rows)
    found["assigned"] = [n_correct, n_certain, len(seen_rows) + len(unseen_rows)]
    is_seen = [1] * len(seen_rows) + [0] * len(unseen_rows)
    confidences = [row.confidence for row in (*seen_rows, *unseen_rows)]
    found["auroc"] = roc_auc_score(is_seen, confidences)
    return {"labels": n_labeled, "n_classes": n_classes, **found}


def compare(
    run: Any, chosen: list[str], truth: np.ndarray, is_labeled: np.ndarray, n_known: int
) -> dict[str, Any]:
    """Return counts of hidden classes, marks and certain images of a run, and its accuracy."""
    rows = run.assignments
    categories = {row.category_id: row for row in run.categories}
    predicted = np.array([row.category_id for row in rows])
    confidence = np.array([row.confidence for row in rows])
    marked = {number for number, row in categories.items() if row.mixed_probability >= MIXED_FROM}
    category_of = {}  # the category with more than half of a novel class
    for novel in range(n_known, len(chosen)):
        numbers, sizes = np.unique(predicted[truth == novel], return_counts=True)
        if 2 * sizes.max() > sizes.sum():
            category_of[novel] = int(numbers[sizes.argmax()])
    shared = Counter(category_of.values())
    hidden = {
        novel: number
        for novel, number in category_of.items()
        if not categories[number].is_novel or shared[number] > 1
    }
    in_known = {
        novel: number for novel, number in hidden.items() if not categories[number].is_novel
    }
    hidden_in_known = [
        (truth == novel) & (predicted == number) for novel, number in in_known.items()
    ]
    known = {number for number, row in categories.items() if not row.is_novel and row.size}
    pure = known - set(in_known.values())
    class_of = {}
    for number, row in categories.items():
        members = truth[predicted == number]
        if not row.is_novel:
            class_of[number] = chosen.index(row.category)
        elif len(members):
            class_of[number] = int(np.bincount(members).argmax())
    is_correct = np.array([class_of[number] for number in predicted]) == truth
    is_in_known = np.isin(predicted, list(known))
    free = ~is_labeled
    scores = gcd_accuracy(truth[free], predicted[free], truth[free] < n_known)
    certain = {}
    for part, members in (("known", free & is_in_known), ("novel", free & ~is_in_known)):
        is_certain = members & (confidence >= CERTAIN)
        n_correct = int(is_correct[is_certain].sum())
        certain[part] = [n_correct, int(is_certain.sum()), int(members.sum())]
    mean_confidence = None
    if hidden_in_known:
        mean_confidence = float(np.mean([confidence[rows].mean() for rows in hidden_in_known]))
    return {
        "class_of": {number: chosen[label] for number, label in class_of.items()},
        "n_novel": len(chosen) - n_known,
        "n_hidden": len(hidden),
        "n_in_known": len(in_known),
        "n_marked": sum(number in marked for number in hidden.values()),
        "confidence": mean_confidence,
        "n_pure": len(pure),
        "n_false_marks": len(pure & marked),
        "accuracy": [scores.all, scores.known, scores.novel],
        "k_error": (run.n_clusters - len(chosen)) / len(chosen),
        "certain": certain,
    }


def work(arguments: argparse.Namespace) -> None:
    """Measure samples that no other worker has taken, within the time budget."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    tasks: dict[str, FrozenTask | TrainedTask] = {}
    for sample, source in itertools.product(range(arguments.samples), arguments.sources):
        train = not source.endswith(".npz")
        name = Path(source.partition(":")[0]).stem
        file = arguments.out / f"{name}-{'trained' if train else 'frozen'}-{sample}.json"
        try:
            os.close(os.open(f"{file}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        if time.perf_counter() - began > arguments.budget:
            break
        if source not in tasks and train:
            root = unpack(source, arguments.out / "images")
            tasks[source] = TrainedTask(root, arguments.device)
        elif source not in tasks:
            tasks[source] = FrozenTask(Path(source))
        row = measure(tasks[source], sample, arguments.out, split=not arguments.unsplit)
        file.write_text(json.dumps({"collection": name, "train": train, **row}))


def table(out: Path) -> list[str]:
    """Return a table with a row per collection, frozen and trained."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    heads = [
        "collection",
        "samples",
        "novel classes hidden",
        "in a known category",
        "confidence there",
        "marked",
        "false marks",
        *(f"correct of certain, {part}" for part in ("known", "novel", "assigned")),
        "AUROC",
        "All / Known / Novel",
        "error of K",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, train in sorted({(row["collection"], row["train"]) for row in rows}):
        group = [row for row in rows if (row["collection"], row["train"]) == (name, train)]

        def total(key: str, rows: list[dict[str, Any]] = group) -> int:
            return sum(row[key] for row in rows)

        certain = [
            np.sum([row["certain"][part] for row in group], axis=0) for part in ("known", "novel")
        ]
        certain.append(np.sum([row["assigned"] for row in group], axis=0))
        confidences = [row["confidence"] for row in group if row["confidence"] is not None]
        accuracy = 100 * np.mean([row["accuracy"] for row in group], axis=0)
        cells = [
            f"{name}, {'trained' if train else 'frozen'}",
            len(group),
            f"{total('n_hidden')} of {total('n_novel')}",
            total("n_in_known"),
            f"{np.mean(confidences):.2f}" if confidences else "–",
            f"{total('n_marked')} of {total('n_hidden')}",
            f"{total('n_false_marks')} of {total('n_pure')}",
            *(
                f"{100 * n_correct / max(1, n_certain):.1f} % of {n_certain} of {n_images}"
                for n_correct, n_certain, n_images in certain
            ),
            f"{np.mean([row['auroc'] for row in group]):.3f}",
            " / ".join(f"{value:.1f}" for value in accuracy),
            f"{100 * np.mean(np.abs([row['k_error'] for row in group])):.1f} %",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", help="npz files of embeddings, or archives")
    parser.add_argument("--samples", type=int, default=24, help="per source")
    parser.add_argument("--unsplit", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds after which none is started"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/hidden_categories"))
    parser.add_argument("--record", type=Path, help="file to append the table to")
    arguments = parser.parse_args()
    for source in arguments.sources:
        if not source.endswith(".npz"):
            unpack(source, arguments.out / "images")
    if arguments.workers > 1:
        command = [sys.executable, *sys.argv, "--workers", "1"]
        workers = [subprocess.Popen(command) for _ in range(arguments.workers)]
        for worker in workers:
            worker.wait()
        write_table(table(arguments.out), arguments.record)
    else:
        work(arguments)


if __name__ == "__main__":
    main()
