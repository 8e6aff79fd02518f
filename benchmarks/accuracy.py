"""Measure the accuracy of `shoal discover`, K given, and what each of its parts adds.

    python benchmarks/accuracy.py flowers102.zip caltech101.zip cub200-train.zip \\
        cifar100-train.zip:50 --seeds 0 1 2

An archive contains a folder per class; ':50' takes the first 50 images of each. A seed samples the
known classes and the labeled images; all other labels are used only for scoring. The columns:

    Algorithm 1  the frozen encoder and mean shifts, as in the paper
    frozen       the frozen result of `shoal discover`: less variance within known classes,
                 must-links and the choice of a linkage
    alone        trained without the held-out labels, clustered by the trained embeddings alone
    trained      the trained result, which blends frozen and trained embeddings, even if not used
    result       the result that `shoal discover` uses

--method legogcd trains another method than CMS; the trained result of one with a classifier is its
predictions. --classes 10 samples ten classes for each seed, --recipe cpu trains as on a CPU, and
--train trains even if held-out labels cannot show that it helps, --to-end also where training would
be stopped because it is worse than the frozen result. --set changes a setting, as in `shoal
discover`. Several --workers share a GPU, each taking the next collection and seed; after --budget
seconds none is started. Every finished row is written to --out immediately.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.arrays import Ints
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.data.readers import read_collection
from shoal.device import choose_device
from shoal.discovery.api import DiscoveryJob
from shoal.discovery.discovery_settings import CPU_RECIPE, GPU_RECIPE, choose_settings
from shoal.discovery.reporter import SILENT
from shoal.discovery.run_job import run_job
from shoal.discovery.trained import evaluation as early_stopping
from shoal.discovery.trained.evaluation import Choice, Evaluation
from shoal.methods.registry import DEFAULT_METHOD, read_changes
from shoal.runs import Run


def unpack(archive: str, folder: Path, n_classes: int | None = None, seed: int = 0) -> Path:
    """Unpack the first images of each class of an archive 'PATH' or 'PATH:50'.

    With `n_classes`, only this many classes, sampled by the seed. Returns the folder of the classes
    in `folder`, which has the name of the archive; an existing one is left unchanged.
    """
    path, _, limit = archive.partition(":")
    root = folder / (Path(path).stem + (f"-{limit}" if limit else ""))
    if root.is_dir():
        return root
    draft = root.with_name(f".{root.name}")
    shutil.rmtree(draft, ignore_errors=True)  # left by an interrupted call
    n_unpacked: dict[str, int] = defaultdict(int)
    with zipfile.ZipFile(path) as opened:
        names = sorted(name for name in opened.namelist() if name.endswith(".webp"))
        classes = sorted({name.split("/")[-2] for name in names})
        if n_classes is not None:
            classes = list(np.random.default_rng(seed).choice(classes, n_classes, replace=False))
        for name in names:
            label, file = name.split("/")[-2:]
            if label in classes and (not limit or n_unpacked[label] < int(limit)):
                n_unpacked[label] += 1
                (draft / label).mkdir(parents=True, exist_ok=True)
                (draft / label / file).write_bytes(opened.read(name))
    return draft.rename(root)


def sample_labels(
    truth: np.ndarray, known_share: float, labeled_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the known classes, and labels (N,) with -1 for unlabeled."""
    rng = np.random.default_rng(1000 + seed)
    n_classes = int(truth.max()) + 1
    known = np.sort(rng.choice(n_classes, round(known_share * n_classes), replace=False))
    candidates = np.flatnonzero(np.isin(truth, known))
    chosen = rng.choice(candidates, int(labeled_share * len(candidates)), replace=False)
    labels = np.full(len(truth), -1)
    labels[chosen] = truth[chosen]
    return known, labels


def measure(root: Path, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Discover the categories of a folder of class folders, and score every result."""
    began = time.perf_counter()
    whole = read_collection(root)
    device = choose_device(arguments.device)
    truth = np.array(whole.labels)
    known, labels = sample_labels(truth, arguments.known, arguments.labeled, seed)
    names = {label: name for label, name in enumerate(whole.classes) if label in known}
    named = {name: names.get(int(label)) for name, label in zip(whole.names, labels, strict=True)}
    collection = read_collection(root, named)
    n_clusters = int(truth.max()) + 1
    recipe = arguments.recipe
    if recipe is None and arguments.method == DEFAULT_METHOD:
        recipe = CPU_RECIPE if device.type == "cpu" else GPU_RECIPE
    settings = choose_settings(
        n_clusters=n_clusters,
        seed=seed,
        epochs=arguments.epochs,
        recipe=recipe,
        method=arguments.method,
        train=arguments.train,
        changes=read_changes(arguments.set),
    )
    if arguments.to_end:
        early_stopping.EVALUATE_AFTER = ()  # type: ignore[assignment]
    trained_embeddings: list[torch.Tensor] = []  # of each evaluation
    compare = Evaluation.compare

    def compare_and_record(
        evaluation: Evaluation, trained: torch.Tensor, predicted: Ints | None
    ) -> Choice:
        trained_embeddings.append(trained)
        return compare(evaluation, trained, predicted)

    Evaluation.compare = compare_and_record  # type: ignore[method-assign]
    is_unlabeled = labels < 0
    is_known = np.isin(truth, known)

    def score(clusters: np.ndarray) -> list[float]:
        found = gcd_accuracy(truth[is_unlabeled], clusters[is_unlabeled], is_known[is_unlabeled])
        return [round(100 * value, 2) for value in (found.all, found.known, found.novel)]

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        job = DiscoveryJob(collection=collection, settings=settings, run=run, device=device)
        run_job(replace(job, reporter=SILENT))
        assert [row.path for row in run.assignments] == list(whole.names)
        # The result that is used is the run itself, the other one a run inside it.
        frozen = Run(run.path / "frozen") if (run.path / "frozen").is_dir() else run
        trained = Run(run.path / "trained") if (run.path / "trained").is_dir() else run
        paper = replace(settings.method_settings.inference, must_link=False, try_average=False)
        embeddings = torch.tensor(np.array(run.array("frozen")), device=device)
        algorithm1 = infer(embeddings, labels, n_clusters, paper).labels
        alone = algorithm1
        if trained_embeddings:
            alone = infer(trained_embeddings[-1], labels, n_clusters, paper).labels
        scores = {
            "Algorithm 1": score(algorithm1),
            "frozen": score(np.array([row.category_id for row in frozen.assignments])),
            "alone": score(alone),
            "trained": score(np.array([row.category_id for row in trained.assignments])),
            "result": score(np.array([row.category_id for row in run.assignments])),
        }
        choice = run.json("choice") if run.has("choice.json") else {}
    Evaluation.compare = compare  # type: ignore[method-assign]
    seconds = round(time.perf_counter() - began, 1)
    return {"collection": root.name, "seed": seed, **scores, "choice": choice, "seconds": seconds}


def work(arguments: argparse.Namespace) -> None:
    """Measure collections and seeds that no other worker has taken, within the time budget."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed, archive in itertools.product(arguments.seeds, arguments.archives):
            file = arguments.out / f"{Path(archive.partition(':')[0]).stem}-{seed}.json"
            try:
                os.close(os.open(f"{file}.taken", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if time.perf_counter() - began > arguments.budget:
                break
            subfolder = "" if arguments.classes is None else str(seed)
            root = unpack(archive, Path(folder) / subfolder, arguments.classes, seed)
            file.write_text(json.dumps(measure(root, seed, arguments)))
            print(file.read_text(), flush=True)


def table(out: Path) -> str:
    """Return a table of the finished rows, the mean of each collection, and the mean of these."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    names = ("Algorithm 1", "frozen", "alone", "trained", "result")
    heads = ["collection", "seed", *names, "held-out accuracy", "p < 0.05"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        scores = [" / ".join(f"{value:.1f}" for value in row[name]) for name in names]
        choice = row["choice"]
        held_out = ["–", "–"]
        if choice:
            accuracies = [f"{100 * (share or 0):.1f}" for share in choice["accuracy"].values()]
            held_out = [" → ".join(accuracies), str(choice["is_significant"])]
        cells = [row["collection"], row["seed"], *scores, *held_out]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    means = []  # (collections, columns)
    for collection in sorted({row["collection"] for row in rows}):
        seeds = [row for row in rows if row["collection"] == collection]
        means.append(np.mean([[row[name][0] for name in names] for row in seeds], axis=0))
        lines.append(mean_row(f"{collection}, All", f"mean of {len(seeds)}", means[-1]))
    lines.append(mean_row("mean of the collections, All", "", np.mean(means, axis=0)))
    return "\n".join(lines)


def mean_row(title: str, seeds: str, means: np.ndarray) -> str:
    """Return a row of means over seeds or collections."""
    return f"| {title} | {seeds} | {' | '.join(f'{mean:.1f}' for mean in means)} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--labeled", type=float, default=0.5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--classes", type=int, help="sample this many classes for each seed")
    parser.add_argument("--method", default=DEFAULT_METHOD)
    parser.add_argument("--recipe", help="by default that of the device, if the method has one")
    parser.add_argument("--train", action="store_true", default=None, help="in any case")
    parser.add_argument("--to-end", action="store_true", help="without early stopping")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    arguments = parser.parse_args()
    if arguments.workers > 1:
        command = [sys.executable, *sys.argv, "--workers", "1"]
        workers = [subprocess.Popen(command) for _ in range(arguments.workers)]
        for worker in workers:
            worker.wait()
    else:
        work(arguments)
    print(table(arguments.out))


if __name__ == "__main__":
    main()
