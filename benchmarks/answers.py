"""Measure the accuracy of `shoal discover`, K given, and what each of its parts adds.

    python benchmarks/answers.py flowers102.zip caltech101.zip cub200-train.zip \\
        cifar100-train.zip:50 --seeds 0 1 2

An archive holds a folder per class; ':50' takes the first 50 images of each. A seed samples the
known classes and the labeled images; all other labels are used for the scores alone. The columns:

    frozen       the frozen encoder, mean shifts (Algorithm 1)
    first        the same with must-links: the result without training
    CMS          trained without the held-out labels, clustered by the trained embeddings alone
    trained      both encoders blended, also where held-out labels choose the frozen result
    answer       the final result of `shoal discover`

--classes 10 samples ten classes for each seed, and --recipe cpu trains as on a CPU. --workers share
a GPU, each taking the next collection and seed; after --budget seconds none is started. Every
finished row is written to --out at once.
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

from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.data.readers import read_collection
from shoal.device import choose_device
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import SILENT
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.evaluation import Evaluation
from shoal.methods.clusters import Representation
from shoal.runs import Run


def unpack(archive: str, folder: Path, n_classes: int | None = None, seed: int = 0) -> Path:
    """Unpack the first images of each class of an archive 'PATH' or 'PATH:50'.

    With `n_classes`, only so many classes, sampled by the seed. Returns the folder of the classes,
    in `folder` and named as the archive; one that is there is left as it is.
    """
    path, _, limit = archive.partition(":")
    root = folder / (Path(path).stem + (f"-{limit}" if limit else ""))
    if root.is_dir():
        return root
    draft = root.with_name(f".{root.name}")
    shutil.rmtree(draft, ignore_errors=True)  # of one that was interrupted
    taken: dict[str, int] = defaultdict(int)
    with zipfile.ZipFile(path) as found:
        names = sorted(one for one in found.namelist() if one.endswith(".webp"))
        kinds = sorted({name.split("/")[-2] for name in names})
        if n_classes is not None:
            kinds = list(np.random.default_rng(seed).choice(kinds, n_classes, replace=False))
        for name in names:
            kind, file = name.split("/")[-2:]
            if kind in kinds and (not limit or taken[kind] < int(limit)):
                taken[kind] += 1
                (draft / kind).mkdir(parents=True, exist_ok=True)
                (draft / kind / file).write_bytes(found.read(name))
    return draft.rename(root)


def draw(
    truth: np.ndarray, known_share: float, labeled_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The known classes, and labels (N,) with -1 for unlabeled."""
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
    known, labels = draw(truth, arguments.known, arguments.labeled, seed)
    names = {label: name for label, name in enumerate(whole.classes) if label in known}
    given = {name: names.get(int(label)) for name, label in zip(whole.names, labels, strict=True)}
    collection = read_collection(root, given)
    n_clusters = int(truth.max()) + 1
    given_settings = {
        "n_clusters": n_clusters,
        "seed": seed,
        "epochs": arguments.epochs,
        "recipe": arguments.recipe,
    }
    settings = choose_settings(**given_settings)
    if arguments.recipe is not None:
        settings = replace(settings, depths=(settings.trained.n_tail_blocks,))
    tried: list[Any] = []
    choose = Evaluation.choose

    def keep_tried(evaluation: Evaluation, learned: Representation) -> Choice:
        tried.append(learned.embeddings)
        return choose(evaluation, learned)

    Evaluation.choose = keep_tried  # type: ignore[method-assign]
    is_unlabeled = labels < 0
    is_known = np.isin(truth, known)

    def score(clusters: np.ndarray) -> list[float]:
        found = gcd_accuracy(truth[is_unlabeled], clusters[is_unlabeled], is_known[is_unlabeled])
        return [round(100 * value, 2) for value in (found.all, found.known, found.novel)]

    with tempfile.TemporaryDirectory() as folder:
        run = discover_images(
            collection, Path(folder) / "run", settings, device=device, reporter=SILENT
        )
        place = {name: row for row, name in enumerate(whole.names)}
        order = [place[row.path] for row in run.assignments]
        assert order == list(range(len(truth)))
        first = Run(run.path / "frozen") if (run.path / "frozen").is_dir() else run
        other = Run(run.path / "trained") if (run.path / "trained").is_dir() else run
        plain = replace(settings.of_method.inference, must_link=False, try_average=False)
        frozen = infer(
            np.array(run.array("frozen")), labels, n_clusters, plain, device=device
        ).labels
        cms = infer(tried[0], labels, n_clusters, plain, device=device).labels if tried else frozen
        answers = {
            "frozen": score(frozen),
            "first": score(np.array([row.category_id for row in first.assignments])),
            "CMS": score(cms),
            "trained": score(np.array([row.category_id for row in other.assignments])),
            "answer": score(np.array([row.category_id for row in run.assignments])),
        }
        choice = run.json("choice") if run.has("choice.json") else {}
    Evaluation.choose = choose  # type: ignore[method-assign]
    seconds = round(time.perf_counter() - began, 1)
    return {"collection": root.name, "seed": seed, **answers, "choice": choice, "seconds": seconds}


def work(arguments: argparse.Namespace) -> None:
    """Take collections and seeds that no other worker has, until none or no time is left."""
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
            drawn = "" if arguments.classes is None else str(seed)
            root = unpack(archive, Path(folder) / drawn, arguments.classes, seed)
            file.write_text(json.dumps(measure(root, seed, arguments)))
            print(file.read_text(), flush=True)


def table(out: Path) -> str:
    """The rows that are done, the mean of each collection, and the mean of these."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    names = ("frozen", "first", "CMS", "trained", "answer")
    heads = ["collection", "seed", *names, "frozen weight", "blocks", "temperature"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        shown = [" / ".join(f"{value:.1f}" for value in row[name]) for name in names]
        choice = row["choice"]
        best = max(choice.get("trials", [{}]), key=lambda one: one.get("accuracy", 0))
        extra = [
            choice.get("frozen_weight", "–"),
            best.get("n_tail_blocks", "–"),
            best.get("temperature", "–"),
        ]
        cells = [row["collection"], row["seed"], *shown, *extra]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    means = []  # (collections, columns)
    for kind in sorted({row["collection"] for row in rows}):
        scores = [[row[name][0] for name in names] for row in rows if row["collection"] == kind]
        means.append(np.mean(scores, axis=0))
        lines.append(mean_row(f"{kind}, All", f"mean of {len(scores)}", means[-1]))
    lines.append(mean_row("mean of the collections, All", "", np.mean(means, axis=0)))
    return "\n".join(lines)


def mean_row(title: str, seeds: str, means: np.ndarray) -> str:
    """A row of means over seeds or collections, without weight, blocks and temperature."""
    return f"| {title} | {seeds} | {' | '.join(f'{mean:.1f}' for mean in means)} | | | |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--labeled", type=float, default=0.5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--classes", type=int, help="draw so many classes for each seed")
    parser.add_argument(
        "--recipe", help="of the default method, with its own number of trained blocks"
    )
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("runs/answers"))
    arguments = parser.parse_args()
    if arguments.workers > 1:
        command = [sys.executable, *sys.argv, "--workers", "1"]
        helpers = [subprocess.Popen(command) for _ in range(arguments.workers)]
        for helper in helpers:
            helper.wait()
    else:
        work(arguments)
    print(table(arguments.out))


if __name__ == "__main__":
    main()
