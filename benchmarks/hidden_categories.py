"""Measure how often a novel category is hidden in another one, whether that is pointed out, and
what confidence is worth.

    python benchmarks/hidden_categories.py flowers102.zip cub200-train.zip --draws 24 --trained 6

An archive holds a folder per class; ':50' takes the first 50 images of each. A draw samples 8 to 40
classes, half or 70 % of them known, and labels two, five or half of the images of each known class;
K is estimated. A novel class is hidden if more than half of its images are in a known category, or
in the same novel category as more than half of another novel class. It is pointed out if that
category is marked. A mark is false on a known category that hides none. Images of classes outside
of the draw and as many later ones of the draw are assigned to the finished run.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from answers import unpack
from records import write_table
from shoal.clustering.matching import gcd_accuracy
from shoal.data.readers import read_collection
from shoal.discovery.assign import Assigner
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import SILENT

KINDS = list(itertools.product((8, 12, 20, 40), (0.5, 0.7), (2, 5, "half")))
MARKED_FROM = 0.1
LATER = 6
"""Every sixth image is not in the run but assigned to it later."""
SURE = 0.9


def link_images(files: list[Path], folder: Path) -> None:
    """Make a folder of images in class folders, without copies."""
    for file in files:
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(file, folder / file.parent.name / file.name)


def measure(root: Path, draw: int, *, train: bool, device: str | None) -> dict[str, Any]:
    """Discover one draw and compare everything with the truth."""
    n_classes, known_share, n_labeled = KINDS[draw % len(KINDS)]
    rng = np.random.default_rng([draw, train])
    names = rng.permutation(sorted(folder.name for folder in root.iterdir())).tolist()
    chosen = names[:n_classes]
    others = names[n_classes : n_classes + max(3, n_classes // 2)]
    n_known = round(known_share * n_classes)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        images = [file for name in chosen for file in sorted((root / name).iterdir())]
        strangers = [file for name in others for file in sorted((root / name).iterdir())]
        later = images[::LATER]
        link_images([file for file in images if file not in set(later)], Path(folder) / "images")
        link_images(later, Path(folder) / "later")
        link_images(rng.permutation(strangers)[: len(later)].tolist(), Path(folder) / "strangers")
        whole = read_collection(Path(folder) / "images")
        truth = np.array([chosen.index(name.split("/")[0]) for name in whole.names])
        is_labeled = np.zeros(len(truth), dtype=bool)
        for known in range(n_known):
            members = rng.permutation(np.flatnonzero(truth == known))
            n = len(members) // 2 if n_labeled == "half" else min(int(n_labeled), len(members) - 1)
            is_labeled[members[:n]] = True
        given = {
            name: chosen[label] if labeled else None
            for name, label, labeled in zip(whole.names, truth, is_labeled, strict=True)
        }
        collection = read_collection(Path(folder) / "images", given)
        settings = choose_settings(seed=draw)
        if not train:
            settings = replace(settings, train=False)
        out = Path(folder) / "run"
        run = discover_images(collection, out, settings, device=device, reporter=SILENT)
        found = compare(run, chosen, truth, is_labeled, n_known)
        class_of = found.pop("class_of")
        assigner = Assigner(run, device=device)
        seen, _ = assigner.assign_images(read_collection(Path(folder) / "later", False))
        never, _ = assigner.assign_images(read_collection(Path(folder) / "strangers", False))
        is_right = [class_of.get(row.category_id) == row.path.split("/")[0] for row in seen]
        n_right = sum(
            right and row.confidence >= SURE for right, row in zip(is_right, seen, strict=True)
        )
        n_sure = sum(row.confidence >= SURE for row in (*seen, *never))
        found["assigned"] = [n_right, n_sure, len(seen) + len(never)]
        is_seen = [1] * len(seen) + [0] * len(never)
        found["auroc"] = roc_auc_score(is_seen, [row.confidence for row in (*seen, *never)])
    return {"labels": n_labeled, "n_classes": n_classes, **found}


def compare(
    run: Any, chosen: list[str], truth: np.ndarray, is_labeled: np.ndarray, n_known: int
) -> dict[str, Any]:
    """Counts of hidden classes, marks and sure images of one run, and its accuracy."""
    rows = run.assignments
    categories = {row.category_id: row for row in run.categories}
    placed = np.array([row.category_id for row in rows])
    confidence = np.array([row.confidence for row in rows])
    marked = {
        number
        for number, row in categories.items()
        if getattr(row, "mixed_probability", 0.0) >= MARKED_FROM
    }
    home = {}  # the category that holds more than half of a novel class
    for novel in range(n_known, len(chosen)):
        numbers, sizes = np.unique(placed[truth == novel], return_counts=True)
        if 2 * sizes.max() > sizes.sum():
            home[novel] = int(numbers[sizes.argmax()])
    homes = list(home.values())
    hidden = {n: h for n, h in home.items() if not categories[h].is_novel or homes.count(h) > 1}
    swallowed = {n: h for n, h in hidden.items() if not categories[h].is_novel}
    in_swallowed = [(truth == n) & (placed == h) for n, h in swallowed.items()]
    known = {number for number, row in categories.items() if not row.is_novel and row.size}
    innocent = known - set(swallowed.values())
    class_of = {}
    for number, row in categories.items():
        members = truth[placed == number]
        if not row.is_novel:
            class_of[number] = chosen.index(row.category)
        elif len(members):
            class_of[number] = int(np.bincount(members).argmax())
    is_right = np.array([class_of[number] for number in placed]) == truth
    is_in_known = np.isin(placed, list(known))
    free = ~is_labeled
    scores = gcd_accuracy(truth[free], placed[free], truth[free] < n_known)
    sure = {}
    for part, members in (("known", free & is_in_known), ("novel", free & ~is_in_known)):
        is_sure = members & (confidence >= SURE)
        sure[part] = [int(is_right[is_sure].sum()), int(is_sure.sum()), int(members.sum())]
    return {
        "class_of": {number: chosen[label] for number, label in class_of.items()},
        "n_novel": len(chosen) - n_known,
        "n_hidden": len(hidden),
        "n_swallowed": len(swallowed),
        "n_pointed_out": sum(h in marked for h in hidden.values()),
        "confidence": float(np.mean([confidence[m].mean() for m in in_swallowed]))
        if in_swallowed
        else None,
        "n_innocent": len(innocent),
        "n_false_marks": len(innocent & marked),
        "accuracy": [scores.all, scores.known, scores.novel],
        "k_error": (run.n_clusters - len(chosen)) / len(chosen),
        "sure": sure,
    }


def work(arguments: argparse.Namespace) -> None:
    """Take the next draw that no other worker has, until there is none or the time is over."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    modes = [(False, draw) for draw in range(arguments.draws)]
    modes += [(True, draw) for draw in range(arguments.trained)]
    for (train, draw), archive in itertools.product(modes, arguments.archives):
        name = Path(archive.partition(":")[0]).stem
        file = arguments.out / f"{name}-{'trained' if train else 'frozen'}-{draw}.json"
        try:
            os.close(os.open(f"{file}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        if time.perf_counter() - began > arguments.budget:
            break
        root = arguments.out / "images" / Path(archive.partition(":")[0]).stem
        if ":" in archive:
            root = root.with_name(f"{root.name}-{archive.partition(':')[2]}")
        row = measure(root, draw, train=train, device=arguments.device)
        file.write_text(json.dumps({"collection": name, "train": train, **row}))


def table(out: Path) -> list[str]:
    """A row per collection, frozen and trained."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    lines = [
        "| collection | draws | novel classes hidden | in a known one | confidence there | pointed "
        "out | "
        "false marks | right of sure, known | novel | assigned | AUROC | All / Known / Novel | K "
        "off |",
        "|" + "---|" * 13,
    ]
    for name, train in sorted({(row["collection"], row["train"]) for row in rows}):
        own = [row for row in rows if (row["collection"], row["train"]) == (name, train)]

        def total(key: str, rows: list[dict[str, Any]] = own) -> int:
            return sum(row[key] for row in rows)

        sure = {p: np.sum([row["sure"][p] for row in own], axis=0) for p in ("known", "novel")}
        assigned = np.sum([row["assigned"] for row in own], axis=0)
        there = [row["confidence"] for row in own if row["confidence"] is not None]
        accuracy = 100 * np.mean([row["accuracy"] for row in own], axis=0)
        cells = [
            f"{name}, {'trained' if train else 'frozen'}",
            len(own),
            f"{total('n_hidden')} of {total('n_novel')}",
            total("n_swallowed"),
            f"{np.mean(there):.2f}" if there else "–",
            f"{total('n_pointed_out')} of {total('n_hidden')}",
            f"{total('n_false_marks')} of {total('n_innocent')}",
            *(
                f"{100 * s[0] / max(1, s[1]):.1f} % of {s[1]} of {s[2]}"
                for s in (*sure.values(), assigned)
            ),
            f"{np.mean([row['auroc'] for row in own]):.3f}",
            " / ".join(f"{value:.1f}" for value in accuracy),
            f"{100 * np.mean(np.abs([row['k_error'] for row in own])):.1f} %",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--draws", type=int, default=24, help="without training, per collection")
    parser.add_argument("--trained", type=int, default=0, help="with training, per collection")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds to start draws in"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/hidden_categories"))
    parser.add_argument("--record", type=Path, help="file to append the table to")
    arguments = parser.parse_args()
    for archive in arguments.archives:
        unpack(archive, arguments.out / "images")
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
