"""Running cells: those that share a training are run together, and each leaves one JSON file when it is done."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from shoal.arrays import UNLABELED
from shoal.distributed import ProcessLost, barrier, is_main, together
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import check_directions, is_out_of_memory
from shoal.errors import DataError, MissingError, ShoalError, TooFewDistinct, UsageError
from shoal.files import make_folder
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.method import LearnOptions
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.reproduce.cell_files import Result, describe, read_result, write_result
from shoal.reproduce.cell_scores import figure_material, recall, score
from shoal.reproduce.clusterings import cluster_cell, cluster_unseen, estimate_again
from shoal.reproduce.loaded_dataset import LoadedDataset, read_names_sha256
from shoal.reproduce.method_words import words_of
from shoal.reproduce.plan import Cell
from shoal.training.checkpoint import is_finished
from shoal.training.collapse import collapse_statistics, describe_collapse

FIRST_GUESS_S = 60.0
"""How long the first training on a dataset is taken to last where time is limited."""


class Runner:
    """Runs the cells of experiments into a folder; finished ones are read, not run again.

    `until` is a moment of `time.monotonic`: a training that would not be done by then, judged by the longest one so
    far on its dataset, is not begun. Tokens are kept in the folder `shared`, where there is one, for other runners. In
    the folder `trainings`, where there is one, every training leaves its checkpoints: one that was cut off goes on, and
    a finished one serves later cells, of this call or another. Cells that fail are left out, and are in `failed` by
    their key; another runner tries them again.
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
        self.roots = dict(roots)
        self.out = out
        self.device = device
        self.until = until
        self.shared = shared
        self.trainings = trainings
        self.tell = tell or (lambda text: None)
        self.loaded_datasets: dict[tuple[str, int], LoadedDataset] = {}
        self.longest: dict[str, float] = {}
        self.marks: dict[tuple[str, str], str | None] = {}
        self.loaded: set[tuple[Any, ...]] = set()
        self.failed: dict[str, ShoalError] = {}
        make_folder(out / "cells")

    def run_cells(self, cells: Iterable[Cell]) -> dict[str, Result]:
        """Run what is missing of some cells, of one experiment or several: what they share is learned once."""
        wanted = {cell.key: cell for cell in cells}
        done = {
            key: read_result(self.file(cell))
            for key, cell in wanted.items()
            if self.file(cell).exists()
        }
        missing = [
            cell for key, cell in wanted.items() if key not in done and key not in self.failed
        ]
        barrier()  # all processes have seen the same files before one writes another
        self._check_folders(missing)
        self._check_encoders(missing)
        for key, result in done.items():
            self._check_same_images(wanted[key], result)
        for group in in_order(groups_of(missing)):
            self._run_group(group)
        barrier()  # the main process has written all of them
        done |= {
            cell.key: read_result(self.file(cell)) for cell in missing if self.file(cell).exists()
        }
        errors = [self.failed[cell.key] for cell in missing if cell.key in self.failed]
        if errors and not done:  # there is nothing to show
            raise errors[0]
        return done

    def file(self, cell: Cell) -> Path:
        """The file of the result of a cell."""
        return self.out / "cells" / f"{cell.key}.json"

    def close(self) -> None:
        """Let go of all images."""
        for loaded in self.loaded_datasets.values():
            loaded.close()
        self.loaded_datasets.clear()

    def _check_folders(self, cells: list[Cell]) -> None:
        """Read the lists of all images that cells need before the first training: what is not there is refused now."""
        for dataset, part in sorted(
            {(cell.dataset, part) for cell in cells for part in cell.parts}
        ):
            if (self.until is None or time.monotonic() < self.until) and (
                dataset,
                part,
            ) not in self.marks:
                self.marks[dataset, part] = read_names_sha256(dataset, self.roots[dataset], part)

    def _check_encoders(self, cells: list[Cell]) -> None:
        """Load every encoder once: weights that are not there, or a tail too deep, are found now."""
        for cell in cells:
            settings = cell.settings
            key = (settings.encoder, getattr(settings, "n_tail_blocks", None), settings.input_size)
            if key not in self.loaded and (self.until is None or time.monotonic() < self.until):
                load_encoder(key[0], n_tail_blocks=key[1], input_size=key[2])
                self.loaded.add(key)

    def _check_same_images(self, cell: Cell, result: Result) -> None:
        """Refuse a finished cell of other images than the folder holds; a folder that is gone is not asked."""
        root = self.roots[cell.dataset]
        key = (cell.dataset, "train")
        if key not in self.marks:
            try:
                self.marks[key] = read_names_sha256(cell.dataset, root)
            except ShoalError:
                self.marks[key] = None
        mark = self.marks[key]
        if mark is not None and result.get("names_sha256", mark) != mark:
            raise UsageError(
                f"{self.file(cell)}: was made with other images ({result['images']:,}) than {root} holds; "
                "give another --out, or delete it to run it again"
            )

    def _run_group(self, cells: list[Cell]) -> None:
        """Train once, then cluster and score for each cell."""
        first = cells[0]
        if not self._is_time_left(first):
            self.tell(f"left out for want of time: {', '.join(cell.key for cell in cells)}")
            return
        began = time.monotonic()
        self.dataset_of(first).read(
            first.parts
        )  # images that cannot be read are the folder's fault, and end the call
        try:
            learned, task, seconds = self._learn(first)
        except Exception as error:
            self._give_up(cells, error)
            return
        for cell in cells:
            try:
                with together():
                    self._finish(cell, learned, task, seconds)
            except TooFewDistinct as error:
                collapse = describe_collapse(collapse_statistics(learned.embeddings))
                self._give_up([cell], TooFewDistinct(f"{collapse}; {error}") if collapse else error)
            except Exception as error:
                self._give_up([cell], error)
        self._note(first, learned, time.monotonic() - began)

    def _give_up(self, cells: list[Cell], error: Exception) -> None:
        """Leave cells out and say why; but raise what the next one would end in as well."""
        causes = [each for each in (error, error.__cause__) if isinstance(each, Exception)]
        if isinstance(error, MissingError | OSError | MemoryError | ProcessLost) or any(
            map(is_out_of_memory, causes)
        ):
            raise error
        if not isinstance(error, ShoalError):
            wrapped = ShoalError(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.failed |= dict.fromkeys((cell.key for cell in cells), error)
        self.tell(f"failed: {', '.join(cell.key for cell in cells)}: {error}; going on without")

    def _is_time_left(self, cell: Cell) -> bool:
        expected = self.longest.get(cell.dataset, FIRST_GUESS_S)
        return self.until is None or time.monotonic() + expected <= self.until

    def _learn(self, cell: Cell) -> tuple[Representation, Task, float]:
        """The first half of the cell's method, what it was given, and the seconds it took, whenever that was."""
        method = get_method(cell.method)
        kept = self._kept(cell)
        folder = kept.get("folder")
        is_done = folder is not None and is_finished(folder)
        task = self.dataset_of(cell).task(cell, with_pool=not is_done)
        doing = (
            "embedding"
            if not method.trains
            else "a training that is there"
            if is_done
            else "training"
        )
        self.tell(f"{cell.dataset}, {cell.method}: {doing}")
        began = time.monotonic()
        learned = method.represent(task, cell.settings, device=self.device, **kept)
        self._check_directions(cell, learned)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = max(time.monotonic() - began, sum(row["seconds"] for row in learned.metrics))
        self._note(cell, learned, seconds)
        return learned, task, seconds

    def _check_directions(self, cell: Cell, learned: Representation) -> None:
        """Refuse features that are only zeros, as images too small for an encoder have them."""
        loaded = self.dataset_of(cell)
        try:
            check_directions(
                (learned.embeddings == 0).all(dim=1), loaded.train.names, loaded.input_size
            )
        except DataError as error:
            raise DataError(f"{cell.dataset}, {cell.method}: {error}") from error

    def _kept(self, cell: Cell) -> LearnOptions:
        """The folder in which a training leaves its checkpoints, and that it resumes from them."""
        if self.trainings is None or not get_method(cell.method).trains:
            return {}
        return {
            "folder": self.trainings / f"{cell.dataset}_{cell.method}_{cell.training_key}",
            "resume": True,
        }

    def _note(self, cell: Cell, learned: Representation, seconds: float) -> None:
        """Remember the longest training; frozen features, done in seconds, say nothing about the next one."""
        if learned.epoch > 0:
            self.longest[cell.dataset] = max(self.longest.get(cell.dataset, 0.0), seconds)

    def _finish(self, cell: Cell, learned: Representation, task: Task, seconds: float) -> None:
        """Cluster, score and write down; `task` is the same for all cells that share a training."""
        began = time.monotonic()
        loaded = self.dataset_of(cell)
        self.marks[cell.dataset, "train"] = loaded.train.names_sha256
        if cell.figure is not None:
            images = loaded.train
            result: Result = {
                "material": figure_material(
                    cell, learned, images, images.labels == UNLABELED, self.device
                )
            }
        else:
            result = self._cluster_and_score(cell, learned, task, loaded)
        about = describe(cell, learned, loaded.train, self.device)
        times = {
            "seconds_training": round(seconds, 1),
            "seconds_clustering": round(time.monotonic() - began, 1),
        }
        if is_main():
            write_result(self.file(cell), result | about | times)
        shown = "" if cell.figure else f" {_shown(result)}"
        self.tell(
            f"{cell.key}:{shown} ({seconds:.0f} s training, {time.monotonic() - began:.0f} s clustering)"
        )

    def _cluster_and_score(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> Result:
        images = loaded.test if cell.setup == "inductive" else loaded.train
        if cell.n_clusters == "estimated" and cell.selection == "given":
            learned = estimate_again(learned, task, cell.settings.inference.rule)
        clusters = self._cluster(cell, learned, task, loaded)
        is_unsupervised = cell.setup == "unsupervised"
        is_scored = (images.labels == UNLABELED) | is_unsupervised
        accuracy = score(clusters.clusters, images, is_scored)
        recalls = recall(learned.embeddings, loaded.train)
        true = images.n_classes
        return {
            "accuracy": accuracy,
            "n_clusters": clusters.n_clusters,
            "true_n_clusters": true,
            "n_clusters_error": 100 * abs(clusters.n_clusters - true) / true,
            "rule": _deciding_rule(cell, learned, clusters),
            "n_shifts": clusters.n_shifts,
            "labeled_accuracies": [
                round(100 * value, 2) for value in clusters.accuracies if not math.isnan(value)
            ],
            "recall": recalls,
        }

    def _cluster(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> Discovery:
        given = loaded.train.n_classes if cell.n_clusters == "given" else None
        if cell.setup == "inductive":
            assert task.validation is not None
            unseen = loaded.test.pixels
            rows = task.validation
            labels = loaded.stopping_labels(cell)
            return cluster_unseen(
                learned, unseen, rows, labels, cell, n_clusters=given, device=self.device
            )
        return cluster_cell(learned, task.labels, cell, n_clusters=given, device=self.device)

    def dataset_of(self, cell: Cell) -> LoadedDataset:
        """The images of a cell."""
        size = cell.input_size
        if size is None:
            size = load_encoder(cell.settings.encoder).input_format.size
        key = (cell.dataset, size)
        if key not in self.loaded_datasets:
            self.close()  # one dataset at a time in memory
            root = self.roots[cell.dataset]
            self.tell(f"{cell.dataset}: reading images from {root}")
            self.loaded_datasets[key] = LoadedDataset(
                cell.dataset,
                root,
                device=self.device,
                input_size=size,
                scratch=self.out,
                shared=self.shared,
            )
        return self.loaded_datasets[key]


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that share a training, in the order in which they come."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training_key, []).append(cell)
    return list(groups.values())


def in_order(groups: Iterable[list[Cell]]) -> list[list[Cell]]:
    """Groups sorted by what a loaded dataset keeps for the next: dataset and size, encoder and tail, seed, views.

    So images are decoded once per dataset, tokens made once per encoder, and pools of views once per seed.
    """
    ranks: dict[tuple[Any, ...], int] = {}

    def order(group: list[Cell]) -> list[int]:
        shared = _shared(group[0])
        return [ranks.setdefault(shared[: depth + 1], len(ranks)) for depth in range(len(shared))]

    return sorted(groups, key=order)


def _shared(cell: Cell) -> tuple[Any, ...]:
    """What makes images, then tokens, then the pool of views of two cells the same."""
    images = (cell.dataset, cell.input_size)
    settings = cell.settings
    if not get_method(cell.method).trains:
        return images, (settings.encoder,)
    training = settings.training
    return (
        images,
        (settings.encoder, settings.n_tail_blocks),
        training.seed,
        (training.views, cell.setup),
    )


def _deciding_rule(cell: Cell, learned: Representation, clusters: Discovery) -> str | None:
    """The rule that K comes from; None where it was given, hidden labels chose it, or the method finds it itself."""
    if cell.n_clusters == "given" or words_of(cell.method).number(cell.settings):
        return None
    return learned.rule if clusters.estimate is None else clusters.estimate.rule


def _shown(result: Result) -> str:
    accuracy = result["accuracy"]
    return (
        " / ".join(f"{accuracy[name]:.1f}" for name in ("all", "known", "novel"))
        + f" at K = {result['n_clusters']}"
    )
