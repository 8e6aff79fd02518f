"""Running cells: those that share a training are run together, and each leaves one JSON file when it is done."""

import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import shoal
from shoal.arrays import UNLABELED
from shoal.data.benchmarks import check_part
from shoal.encoders.catalog import load_encoder
from shoal.errors import DataError, ShoalError, UsageError
from shoal.files import make_folder, write_text
from shoal.methods.catalog import get_method
from shoal.methods.method import Discovery, Representation, Task
from shoal.methods.method import Options as Keeping
from shoal.reproduce.clusterings import cluster_cell, cluster_unseen, estimate_again
from shoal.reproduce.experiment import Cell, Experiment, Options, check_owned, make_cell
from shoal.reproduce.scoring import figure_material, recall, score
from shoal.reproduce.stage import Stage, read_names_sha256
from shoal.training.checkpoint import is_finished

Result = dict[str, Any]
"""What a cell's file holds."""

HOLDS = {"cell", "epoch", "notes"}
"""What every cell's file has, beside one of these: its scores, or what a figure is drawn from."""
SHOWS = {"accuracy", "material"}

FIRST_GUESS_S = 60.0
"""How long the first training on a dataset is taken to last where time is limited."""


class Runner:
    """Runs the cells of experiments into a folder; finished ones are read, not run again.

    `until` is a moment of `time.monotonic`: a training that would not be done by then, judged by the longest one so
    far on its dataset, is not begun. Tokens are kept in the folder `shared`, where there is one, for other runners. In
    the folder `trainings`, where there is one, every training leaves its checkpoints: one that was cut off goes on, and
    a finished one serves later cells, of this call or another.
    """

    def __init__(
        self,
        roots: Mapping[str, Path],
        out: Path,
        *,
        device: torch.device,
        until: float | None = None,
        shared: Path | None = None,
        trainings: Path | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.roots, self.out, self.device, self.until, self.shared = dict(roots), out, device, until, shared
        self.trainings = trainings
        self.tell = tell or (lambda text: None)
        self.stages: dict[tuple[str, int], Stage] = {}
        self.longest: dict[str, float] = {}
        self.marks: dict[str, str | None] = {}
        make_folder(out / "cells")

    def run(self, experiment: Experiment, seeds: Iterable[int], options: Options) -> dict[str, Result]:
        """Run what is missing of an experiment; all results there are, by the key of the cell."""
        return self.run_cells(cells_of(experiment, list(self.roots), seeds, options))

    def run_cells(self, cells: Iterable[Cell]) -> dict[str, Result]:
        """Run what is missing of some cells, of one experiment or several: what they share is learned once."""
        wanted = {cell.key: cell for cell in cells}
        done = {key: read_result(self.file(cell)) for key, cell in wanted.items() if self.file(cell).exists()}
        missing = [cell for key, cell in wanted.items() if key not in done]
        self._check_folders(missing)
        for key, found in done.items():
            self._check_same_images(wanted[key], found)
        for group in groups_of(missing):
            self._run_group(group)
        return done | {cell.key: read_result(self.file(cell)) for cell in missing if self.file(cell).exists()}

    def file(self, cell: Cell) -> Path:
        """Where the result of a cell is."""
        return self.out / "cells" / f"{cell.key}.json"

    def close(self) -> None:
        """Let go of all images."""
        for stage in self.stages.values():
            stage.close()
        self.stages.clear()

    def _check_folders(self, cells: list[Cell]) -> None:
        """Refuse a folder without the images that cells need before the first training, not after it."""
        for dataset, part in sorted({(cell.dataset, part) for cell in cells for part in cell.parts}):
            if self.until is None or time.monotonic() < self.until:
                check_part(dataset, self.roots[dataset], part)

    def _check_same_images(self, cell: Cell, found: Result) -> None:
        """Refuse a finished cell of other images than the folder holds; a folder that is gone is not asked."""
        root = self.roots[cell.dataset]
        if cell.dataset not in self.marks:
            try:
                self.marks[cell.dataset] = read_names_sha256(cell.dataset, root)
            except ShoalError:
                self.marks[cell.dataset] = None
        mark = self.marks[cell.dataset]
        if mark is not None and found.get("names_sha256", mark) != mark:
            raise UsageError(
                f"{self.file(cell)}: was made with other images ({found['images']:,}) than {root} holds; "
                "give another --out, or delete it to run it again"
            )

    def _run_group(self, cells: list[Cell]) -> None:
        """Train once, then cluster and score for each cell."""
        first = cells[0]
        if not self._is_time_left(first):
            self.tell(f"left out for want of time: {', '.join(cell.key for cell in cells)}")
            return
        began = time.monotonic()
        learned, seconds = self._learn(first)
        for cell in cells:
            self._finish(cell, learned, self.stage(cell), seconds)
        self._note(first, learned, time.monotonic() - began)

    def _is_time_left(self, cell: Cell) -> bool:
        expected = self.longest.get(cell.dataset, FIRST_GUESS_S)
        return self.until is None or time.monotonic() + expected <= self.until

    def _learn(self, cell: Cell) -> tuple[Representation, float]:
        """The first half of the cell's method, and the seconds it took, whenever that was."""
        method, kept = get_method(cell.method), self._kept(cell)
        folder = kept.get("folder")
        is_done = folder is not None and is_finished(folder)
        task = self.stage(cell).task(cell, with_pool=not is_done)
        doing = "embedding" if not method.trains else "a training that is there" if is_done else "training"
        self.tell(f"{cell.dataset}, {cell.method}: {doing}")
        began = time.monotonic()
        learned = method.represent(task, cell.settings, device=self.device, **kept)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = max(time.monotonic() - began, sum(row["seconds"] for row in learned.metrics))
        self._note(cell, learned, seconds)
        return learned, seconds

    def _kept(self, cell: Cell) -> Keeping:
        """Where a training leaves its checkpoints, and that it goes on from them."""
        if self.trainings is None or not get_method(cell.method).trains:
            return {}
        return {"folder": self.trainings / f"{cell.dataset}_{cell.method}_{cell.training_key}", "resume": True}

    def _note(self, cell: Cell, learned: Representation, seconds: float) -> None:
        """Remember the longest training; frozen features, done in seconds, say nothing about the next one."""
        if learned.epoch > 0:
            self.longest[cell.dataset] = max(self.longest.get(cell.dataset, 0.0), seconds)

    def _finish(self, cell: Cell, learned: Representation, stage: Stage, seconds: float) -> None:
        began = time.monotonic()
        self.marks[cell.dataset] = stage.train.names_sha256
        if cell.figure is not None:
            images = stage.train
            found: Result = {
                "material": figure_material(cell, learned, images, images.labels == UNLABELED, self.device)
            }
        else:
            found = self._cluster_and_score(cell, learned, stage)
        about = {
            "cell": cell.identity,
            "hidden_labels_chose": cell.sees_hidden_labels,
            "epoch": learned.epoch,
            "epochs": len(learned.metrics),
            "validation": _validation(learned),
            "seconds_training": round(seconds, 1),
            "seconds_clustering": round(time.monotonic() - began, 1),
            "images": len(stage.train.labels),
            "images_skipped": stage.train.n_skipped,
            "split_sha256": stage.train.split_sha256,
            "names_sha256": stage.train.names_sha256,
            "notes": list(stage.train.notes),
            "device": _device_name(self.device),
            "torch": torch.__version__,
            "shoal": shoal.__version__,
        }
        write_text(self.file(cell), json.dumps(found | about, indent=1) + "\n")
        shown = "" if cell.figure else f" {_shown(found)}"
        self.tell(f"{cell.key}:{shown} ({seconds:.0f} s training, {time.monotonic() - began:.0f} s clustering)")

    def _cluster_and_score(self, cell: Cell, learned: Representation, stage: Stage) -> Result:
        images, task = stage.test if cell.setup == "inductive" else stage.train, stage.task(cell, with_pool=False)
        if cell.n_clusters == "estimated" and cell.selection == "given":
            learned = estimate_again(learned, task, cell.settings.inference.rule)
        clusters = self._cluster(cell, learned, task, stage)
        is_unsupervised = cell.setup == "unsupervised"
        is_scored = (images.labels == UNLABELED) | is_unsupervised
        true = images.n_classes
        return {
            "accuracy": score(clusters.clusters, images, is_scored),
            "n_clusters": clusters.n_clusters,
            "true_n_clusters": true,
            "n_clusters_error": 100 * abs(clusters.n_clusters - true) / true,
            "rule": _deciding_rule(cell, learned, clusters),
            "n_shifts": clusters.n_shifts,
            "labeled_accuracies": [round(100 * value, 2) for value in clusters.accuracies if not math.isnan(value)],
            "recall": recall(learned.embeddings, stage.train),
        }

    def _cluster(self, cell: Cell, learned: Representation, task: Task, stage: Stage) -> Discovery:
        given = stage.train.n_classes if cell.n_clusters == "given" else None
        if cell.setup == "inductive":
            assert task.validation is not None
            unseen, rows, labels = stage.test.pixels, task.validation, stage.stopping_labels(cell)
            return cluster_unseen(learned, unseen, rows, labels, cell, n_clusters=given, device=self.device)
        return cluster_cell(learned, task.labels, cell, n_clusters=given, device=self.device)

    def stage(self, cell: Cell) -> Stage:
        """The images of a cell."""
        size = cell.settings.input_size
        if size is None:
            size = load_encoder(cell.settings.encoder).input_format.size
        key = (cell.dataset, size)
        if key not in self.stages:
            self.close()  # one dataset at a time in memory
            root = self.roots[cell.dataset]
            self.tell(f"{cell.dataset}: reading images from {root}")
            self.stages[key] = Stage(
                cell.dataset, root, device=self.device, input_size=size, scratch=self.out, shared=self.shared
            )
        return self.stages[key]


def cells_of(experiment: Experiment, datasets: list[str], seeds: Iterable[int], options: Options) -> list[Cell]:
    """The cells of an experiment on those datasets; a method that draws nothing has one cell for all seeds."""
    seeds = list(seeds)
    if not datasets or not seeds:
        raise UsageError("reproduce: found no dataset or no seed; give --root DATASET=FOLDER and --seeds 0")
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise UsageError(
            f"--seeds: found {', '.join(map(str, twice))} more than once; the same seed is the same run, and no spread"
        )
    check_owned(experiment, options)
    rows = [row for row in experiment.rows if row.method is not None]
    return [make_cell(experiment, row, name, seed, options) for name in datasets for row in rows for seed in seeds]


def read_result(file: Path) -> Result:
    """Read a cell's file."""
    problem = "not all of one is there"
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.keys() >= HOLDS and not found.keys().isdisjoint(SHOWS):
            return found
    except (OSError, ValueError) as error:
        problem = str(error)
    raise DataError(f"{file}: cannot be read as the result of a cell ({problem}); delete it to run it again")


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that share a training, in the order in which they come."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training_key, []).append(cell)
    return list(groups.values())


def _deciding_rule(cell: Cell, learned: Representation, clusters: Discovery) -> str | None:
    """The rule that K comes from; None where it was given, or hidden labels chose it."""
    if cell.n_clusters == "given":
        return None
    return learned.rule if clusters.estimate is None else clusters.estimate.rule


def _validation(learned: Representation) -> Result:
    """What the validation images said about the snapshot that was kept."""
    if learned.epoch == 0 or not learned.metrics:
        return {}
    accuracies = [row["validation_accuracy"] for row in learned.metrics]
    curve = [None if value is None or math.isnan(value) else round(100 * value, 2) for value in accuracies]
    kept = learned.epoch - 1
    return {"accuracy": curve[kept], "n_clusters": learned.metrics[kept]["n_clusters"], "curve": curve}


def _shown(found: Result) -> str:
    accuracy = found["accuracy"]
    return " / ".join(f"{accuracy[name]:.1f}" for name in ("all", "known", "novel")) + f" at K = {found['n_clusters']}"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
