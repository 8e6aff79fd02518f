"""Reproduce tables of the paper: run the missing cells, each into one JSON file, and write tables.

Cells that need the same training are run as a group.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from shoal.arrays import UNLABELED
from shoal.clustering.matching import gcd_accuracy
from shoal.data.benchmarks import BENCHMARKS, get_facts
from shoal.distributed import ProcessLost, barrier, is_main
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import check_directions
from shoal.errors import MissingError, ShoalError, UsageError
from shoal.files import make_folder, write_text
from shoal.methods.cms import learned_attention
from shoal.methods.method import Discovery, Representation, nearest_clusters, shift_and_cut
from shoal.methods.registry import get_method
from shoal.reproduce.experiments import FIXED_SHIFTS, get_experiment
from shoal.reproduce.loaded_dataset import LoadedDataset, check_dataset
from shoal.reproduce.plan import Cell, Plan, ReproduceOptions, check_changes, make_plan
from shoal.reproduce.tables import Record, Result, build_table, describe, read_result, recall
from shoal.runs import csv_text
from shoal.training.inputs import Task
from shoal.training.loop import is_finished
from shoal.training.validation import validate


@dataclass(kw_only=True)
class Runner:
    """Runs cells into a folder; finished ones are read instead.

    The checkpoints of every training run are stored there: an interrupted one is resumed, and a
    finished one is used by later cells.
    """

    roots: Mapping[str, Path | str]
    out: Path
    device: torch.device
    log: Callable[[str], None]
    # The errors of failed cells by key; the next call runs those cells again
    failed: dict[str, ShoalError] = field(default_factory=dict)
    _loaded: LoadedDataset | None = None

    def run_cells(self, cells: Iterable[Cell]) -> dict[str, Result]:
        """Run the cells without a result, and return the results of all of them by key."""
        make_folder(self.out / "cells")
        wanted = {cell.key: cell for cell in cells}
        results = self._read(wanted.values())
        missing = [cell for key, cell in wanted.items() if key not in results]
        barrier()  # all processes have seen the same files before one writes another
        self._check_inputs(missing)
        for group in group_by_training(missing):
            self._run_group(group)
        barrier()  # the main process has written all of them
        results |= self._read(missing)
        if self.failed and not results:
            raise next(iter(self.failed.values()))
        return results

    def _file(self, cell: Cell) -> Path:
        return self.out / "cells" / f"{cell.key}.json"

    def _read(self, cells: Iterable[Cell]) -> dict[str, Result]:
        finished = [cell for cell in cells if self._file(cell).exists()]
        return {cell.key: read_result(self._file(cell)) for cell in finished}

    def _check_inputs(self, cells: list[Cell]) -> None:
        """Read all lists of images and load every encoder, to fail early if one is missing."""
        parts = {(cell.dataset, part) for cell in cells for part in cell.parts}
        for dataset, part in sorted(parts):
            check_dataset(dataset, self.roots[dataset], part)
        encoders = {
            (
                cell.settings.encoder,
                None if cell.trained is None else cell.trained.n_tail_blocks,
                cell.settings.input_size,
            )
            for cell in cells
        }
        for name, split, input_size in encoders:
            load_encoder(name, n_tail_blocks=split, input_size=input_size)

    def _run_group(self, cells: list[Cell]) -> None:
        first = cells[0]
        loaded = self._load(first)
        # Images that cannot be read would fail every cell of the dataset, so this error is raised.
        for part in first.parts:
            getattr(loaded, part)
        try:
            task, learned = self._learn(first, loaded)
        except ShoalError as error:
            self._skip(cells, error)
            return
        for cell in cells:
            try:
                self._finish(cell, learned, task, loaded)
            except ShoalError as error:
                self._skip([cell], error)

    def _skip(self, cells: list[Cell], error: ShoalError) -> None:
        """Log an error and continue without these cells; raise one that would affect every cell."""
        if isinstance(error, MissingError | ProcessLost):
            raise error
        for cell in cells:
            self.failed[cell.key] = error
            self.log(f"failed: {cell.key}: {error}; continuing without it")

    def _load(self, cell: Cell) -> LoadedDataset:
        """Return the images of a cell; one dataset at a time is in memory."""
        size = cell.input_size or load_encoder(cell.settings.encoder).input_format.size
        loaded = self._loaded
        if loaded is None or (loaded.dataset, loaded.input_size) != (cell.dataset, size):
            self._loaded = None  # free its memory first
            root = self.roots[cell.dataset]
            self.log(f"{cell.dataset}: reading images from {root}")
            loaded = LoadedDataset(cell.dataset, root, device=self.device, input_size=size)
            self._loaded = loaded
        return loaded

    def _learn(self, cell: Cell, loaded: LoadedDataset) -> tuple[Task, Representation]:
        folder = self.out / "trainings" / f"{cell.dataset}_{cell.method}_{cell.training_key}"
        task = loaded.task(cell, with_pool=not is_finished(folder))
        self.log(f"{cell.dataset}, {cell.method}: learning embeddings")
        learned = get_method(cell.method).represent(
            task, cell.settings, device=self.device, folder=folder, resume=True
        )
        # The features of images that are too small for an encoder are all zero.
        check_directions(
            (learned.embeddings == 0).all(dim=1), loaded.train.names, loaded.input_size
        )
        return task, learned

    def _finish(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> None:
        start = time.monotonic()
        if cell.n_clusters == "estimated" and cell.selection == "given":
            learned = estimate_k(learned, task, cell.settings.inference.rule)
        found = self._cluster(cell, learned, task, loaded)
        images = loaded.test if cell.setup == "inductive" else loaded.train
        is_scored = (images.labels == UNLABELED) | (cell.setup == "unsupervised")
        accuracy = gcd_accuracy(
            images.truth[is_scored], found.clusters[is_scored], images.is_known[is_scored]
        )
        accuracies = [value for value in found.accuracies if not math.isnan(value)]
        true_k = images.n_classes
        result = describe(cell, learned, loaded.train, self.device)
        result |= {
            "accuracy": {name: 100 * share for name, share in asdict(accuracy).items()},
            "n_clusters": found.n_clusters,
            "true_n_clusters": true_k,
            "n_clusters_error": 100 * abs(found.n_clusters - true_k) / true_k,
            "n_shifts": found.n_shifts,
            "labeled_accuracies": [round(100 * value, 2) for value in accuracies],
            "recall": recall(learned.embeddings, loaded.train),
            "seconds_training": round(sum(row["seconds"] for row in learned.metrics), 1),
            "seconds_clustering": round(time.monotonic() - start, 1),
        }
        if is_main():
            write_text(self._file(cell), json.dumps(result, indent=1) + "\n")
        self.log(f"{cell.key}: {accuracy} at K = {found.n_clusters}")

    def _cluster(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> Discovery:
        """Cluster the training part or, in the inductive setup, the test part.

        The embeddings may be learned by a different method from the one that clusters.
        """
        n_clusters = loaded.train.n_classes if cell.n_clusters == "given" else None
        if cell.clustering in FIXED_SHIFTS:
            assert n_clusters is not None
            return cluster_after(FIXED_SHIFTS[cell.clustering], learned, cell, n_clusters)
        method = get_method(cell.clustering)
        settings = cell.clustering_settings
        if cell.setup != "inductive":
            return method.cluster(learned, task.labels, settings, n_clusters)
        unseen = learned.embed(loaded.test.pixels)
        labels = loaded.train.labels
        if cell.sees_hidden_labels:
            # The released code also uses hidden labels to decide when to stop shifting.
            labels = np.where(loaded.train.is_known, loaded.train.truth, UNLABELED)
        if method.cluster_unseen is not None:
            assert task.validation is not None
            return method.cluster_unseen(
                learned, unseen, labels, task.validation, settings, n_clusters
            )
        found = method.cluster(learned, labels, settings, n_clusters)
        return replace(found, clusters=nearest_clusters(learned, found, unseen))


def cluster_after(n_shifts: int, learned: Representation, cell: Cell, n_clusters: int) -> Discovery:
    """Shift a fixed number of times, regardless of labels, and cut Ward's tree.

    There are fewer shifts if a further one would leave fewer distinct embeddings than clusters.
    """
    return shift_and_cut(
        replace(learned, n_shifts=n_shifts),
        np.full(len(learned.embeddings), UNLABELED, dtype=np.int64),
        cell.clustering_settings.inference,
        n_clusters=n_clusters,
        seed=0,
        attention=learned_attention(learned),
    )


def estimate_k(learned: Representation, task: Task, rule: str) -> Representation:
    """Return the representation with an estimate of K, for a snapshot chosen at the given K."""
    if task.validation_set is not None:
        embeddings = learned.embed(task.validation_set.pixels)
        validation = task.validation_set.score(embeddings, None, None)
    else:
        rows = task.validation
        assert rows is not None
        validation = validate(learned.embeddings[rows], task.labels[rows], rule=rule)
    return replace(learned, n_clusters=validation.n_clusters)


def group_by_training(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return groups of cells that need the same training, sorted to reuse a loaded dataset's
    caches.

    Images are decoded once per dataset, tokens computed once per encoder, and views once per seed.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training_key, []).append(cell)

    def cache_key(group: list[Cell]) -> str:
        cell = group[0]
        key = f"{cell.dataset} {cell.input_size} {cell.settings.encoder}"
        if cell.trained is None:
            return key
        training = cell.trained.training
        return f"{key} {cell.trained.n_tail_blocks} {training.seed} {training.views} {cell.setup}"

    return sorted(groups.values(), key=cache_key)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A reproduced table: its text, its files, and the numbers in it."""

    # Error messages of its failed cells, by key
    failures: dict[str, str]
    text: str
    records: list[Record]
    files: list[Path]


def reproduce(
    names: Sequence[str],
    roots: Mapping[str, Path | str],
    out: Path | str,
    *,
    device: torch.device,
    seeds: Sequence[int] = (0,),
    options: ReproduceOptions,
    log: Callable[[str], None] | None = None,
) -> list[Reproduction]:
    """Run tables of the paper on benchmarks in `roots` and write them into `out`.

    What they share is trained once. Finished cells and training runs in `out` are used, and an
    interrupted one is resumed. A training run that fails is logged and left out of the tables; if
    there is no result at all, its error is raised. Several processes share every training run and
    clustering; the main one writes, and the others return an empty list.
    """
    experiments = [get_experiment(name, options.methods) for name in dict.fromkeys(names)]
    if not roots:
        raise UsageError(f"reproduce: no --root DATASET=FOLDER; datasets: {', '.join(BENCHMARKS)}")
    for dataset in roots:
        get_facts(dataset)
    check_changes(experiments, options)
    plans = []
    for experiment in experiments:
        # In the order of the paper's columns, then datasets that the paper does not have.
        columns = sorted(roots, key=lambda name: (*experiment.datasets, name).index(name))
        plans.append(make_plan(experiment, columns, seeds, options))
    runner = Runner(roots=roots, out=Path(out), device=device, log=log or (lambda text: None))
    results = runner.run_cells([cell for plan in plans for cell in plan.cells])
    if not is_main():
        return []
    return [_write(runner, plan, results) for plan in plans]


def _write(runner: Runner, plan: Plan, results: Mapping[str, Result]) -> Reproduction:
    keys = {cell.key for cell in plan.cells}
    failures = {key: str(error) for key, error in runner.failed.items() if key in keys}
    text, records = build_table(plan, results, failures)
    name = f"table{plan.experiment.name}"
    if plan.options.protocol != "paper":
        name += f"_{plan.options.protocol}"
    files = [runner.out / f"{name}.md", runner.out / f"{name}.csv"]
    write_text(files[0], text)
    write_text(files[1], csv_text(list(records[0]), [list(record.values()) for record in records]))
    return Reproduction(failures=failures, text=text, records=records, files=files)
