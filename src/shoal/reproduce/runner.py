"""Run cells: those that share a training together, each into one JSON file when it is done."""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from shoal.arrays import UNLABELED
from shoal.distributed import ProcessLost, barrier, is_main, together
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import check_directions, is_out_of_memory
from shoal.errors import DataError, MissingError, ShoalError, TooFewDistinct, UsageError
from shoal.files import make_folder, write_text
from shoal.methods.clusters import Discovery, Representation, nearest_clusters
from shoal.methods.registry import get_method
from shoal.reproduce.cell_results import Result, describe, read_result, recall, score
from shoal.reproduce.clusterings import estimate_again, shifted_by
from shoal.reproduce.experiments import ONE_STEP
from shoal.reproduce.loaded_dataset import LoadedDataset, read_names_sha256
from shoal.reproduce.method_words import words_of
from shoal.reproduce.plan import Cell
from shoal.training.checkpoint import is_finished
from shoal.training.collapse import collapse_statistics, describe_collapse
from shoal.training.task import Task


class Runner:
    """Runs the cells of experiments into a folder; finished ones are read, not run again.

    Every training leaves its checkpoints there: one that was interrupted is resumed, and a finished
    one serves later cells, of this call or another. Cells that fail are left out, and are in
    `failed` by their key; the next call tries them again.
    """

    def __init__(
        self,
        roots: Mapping[str, Path],
        out: Path,
        *,
        device: torch.device,
        tell: Callable[[str], None],
    ) -> None:
        self.roots = roots
        self.out = out
        self.device = device
        self.tell = tell
        self.failed: dict[str, ShoalError] = {}
        self._loaded: LoadedDataset | None = None
        make_folder(out / "cells")

    def run_cells(self, cells: Iterable[Cell]) -> dict[str, Result]:
        """Run the missing ones of some cells and return the results of all, by key."""
        wanted = {cell.key: cell for cell in cells}
        done = self._read(wanted.values())
        missing = [cell for key, cell in wanted.items() if key not in done]
        barrier()  # all processes have seen the same files before one writes another
        self._check_inputs(missing)
        self._check_same_images([wanted[key] for key in done], done)
        for group in groups_of(missing):
            self._run_group(group)
        barrier()  # the main process has written all of them
        done |= self._read(missing)
        if self.failed and not done:  # there is nothing to show
            raise next(iter(self.failed.values()))
        return done

    def _file(self, cell: Cell) -> Path:
        return self.out / "cells" / f"{cell.key}.json"

    def _read(self, cells: Iterable[Cell]) -> dict[str, Result]:
        """The results of those cells that are finished."""
        files = {cell.key: self._file(cell) for cell in cells}
        return {key: read_result(file) for key, file in files.items() if file.exists()}

    def _check_inputs(self, cells: list[Cell]) -> None:
        """Read all lists of images and load every encoder, so that what is missing is found now."""
        for dataset, part in sorted(
            {(cell.dataset, part) for cell in cells for part in cell.parts}
        ):
            read_names_sha256(dataset, self.roots[dataset], part)
        encoders: dict[tuple[str, int | None, int | None], None] = {}
        for cell in cells:
            n_tail_blocks = None if cell.trained is None else cell.trained.n_tail_blocks
            encoders[cell.settings.encoder, n_tail_blocks, cell.settings.input_size] = None
        for name, n_tail_blocks, input_size in encoders:
            load_encoder(name, n_tail_blocks=n_tail_blocks, input_size=input_size)

    def _check_same_images(self, cells: list[Cell], results: Mapping[str, Result]) -> None:
        """Refuse finished cells of other images than a folder holds, where it still exists."""
        found: dict[str, str | None] = {}
        for dataset in {cell.dataset for cell in cells}:
            try:
                found[dataset] = read_names_sha256(dataset, self.roots[dataset])
            except ShoalError:
                found[dataset] = None
        for cell in cells:
            checksum = found[cell.dataset]
            if checksum is not None and results[cell.key].get("names_sha256", checksum) != checksum:
                raise UsageError(
                    f"{self._file(cell)}: was made with other images than "
                    f"{self.roots[cell.dataset]} holds; give another --out, or delete it to run "
                    "it again"
                )

    def _run_group(self, cells: list[Cell]) -> None:
        """Train once, then cluster and score for each cell."""
        first = cells[0]
        loaded = self._load(first)
        # Images that cannot be read are the folder's fault, and end the call.
        loaded.read(first.parts)
        try:
            learned, task, seconds = self._learn(first, loaded)
        except Exception as error:
            self._give_up(cells, error)
            return
        for cell in cells:
            try:
                with together():
                    self._finish(cell, learned, task, loaded, seconds)
            except TooFewDistinct as error:
                collapse = describe_collapse(collapse_statistics(learned.embeddings))
                if collapse:
                    error = TooFewDistinct(f"{collapse}; {error}")
                self._give_up([cell], error)
            except Exception as error:
                self._give_up([cell], error)

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
        for cell in cells:
            self.failed[cell.key] = error
            self.tell(f"failed: {cell.key}: {error}; going on without")

    def _load(self, cell: Cell) -> LoadedDataset:
        """The images of a cell; one dataset at a time is in memory."""
        size = cell.input_size
        if size is None:
            size = load_encoder(cell.settings.encoder).input_format.size
        loaded = self._loaded
        if loaded is None or (loaded.dataset, loaded.input_size) != (cell.dataset, size):
            self._loaded = None  # its memory is needed
            root = self.roots[cell.dataset]
            self.tell(f"{cell.dataset}: reading images from {root}")
            loaded = LoadedDataset(cell.dataset, root, device=self.device, input_size=size)
            self._loaded = loaded
        return loaded

    def _learn(self, cell: Cell, loaded: LoadedDataset) -> tuple[Representation, Task, float]:
        """Train or embed: the representation, the task, and the seconds over all calls."""
        folder = None
        is_done = False
        doing = "embedding"
        if cell.trained is not None:
            name = f"{cell.dataset}_{cell.method}_{cell.training_key}"
            folder = self.out / "trainings" / name
            is_done = is_finished(folder)
            doing = "training, or what is left of it"
        task = loaded.task(cell, with_pool=not is_done)
        self.tell(f"{cell.dataset}, {cell.method}: {doing}")
        began = time.monotonic()
        learned = get_method(cell.method).represent(
            task, cell.settings, device=self.device, folder=folder, resume=folder is not None
        )
        try:
            # Images too small for an encoder have features that are only zeros.
            is_zero = (learned.embeddings == 0).all(dim=1)
            check_directions(is_zero, loaded.train.names, loaded.input_size)
        except DataError as error:
            raise DataError(f"{cell.dataset}, {cell.method}: {error}") from error
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds_of_epochs = sum(row["seconds"] for row in learned.metrics)
        return learned, task, max(time.monotonic() - began, seconds_of_epochs)

    def _finish(
        self,
        cell: Cell,
        learned: Representation,
        task: Task,
        loaded: LoadedDataset,
        seconds: float,
    ) -> None:
        """Cluster, score and write; all cells that share a training have the same `task`."""
        began = time.monotonic()
        shown = ""
        if cell.figure is None:
            result = self._cluster_and_score(cell, learned, task, loaded)
            scores = " / ".join(f"{value:.1f}" for value in result["accuracy"].values())
            shown = f" {scores} at K = {result['n_clusters']}"
        else:
            from shoal.reproduce.figures import gather

            result = {"material": gather(cell, learned, loaded.train, self.device)}
        seconds_clustering = time.monotonic() - began
        result |= describe(cell, learned, loaded.train, self.device)
        result["seconds_training"] = round(seconds, 1)
        result["seconds_clustering"] = round(seconds_clustering, 1)
        if is_main():
            write_text(self._file(cell), json.dumps(result, indent=1) + "\n")
        times = f"{seconds:.0f} s training, {seconds_clustering:.0f} s clustering"
        self.tell(f"{cell.key}:{shown} ({times})")

    def _cluster_and_score(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> Result:
        if cell.n_clusters == "estimated" and cell.selection == "given":
            learned = estimate_again(learned, task, cell.settings.inference.rule)
        found = self._cluster(cell, learned, task, loaded)
        rule = None
        is_by_rule = not words_of(cell.method, cell.settings).number
        if cell.n_clusters == "estimated" and is_by_rule:
            rule = learned.rule
            if found.estimate is not None:
                rule = found.estimate.rule
        images = loaded.test if cell.setup == "inductive" else loaded.train
        is_scored = (images.labels == UNLABELED) | (cell.setup == "unsupervised")
        accuracies = [value for value in found.accuracies if not math.isnan(value)]
        true = images.n_classes
        return {
            "accuracy": score(found.clusters, images, is_scored),
            "n_clusters": found.n_clusters,
            "true_n_clusters": true,
            "n_clusters_error": 100 * abs(found.n_clusters - true) / true,
            "rule": rule,
            "n_shifts": found.n_shifts,
            "labeled_accuracies": [round(100 * value, 2) for value in accuracies],
            "recall": recall(learned.embeddings, loaded.train),
        }

    def _cluster(
        self, cell: Cell, learned: Representation, task: Task, loaded: LoadedDataset
    ) -> Discovery:
        """Cluster the images a cell was trained on, or in the inductive setup those of the test
        part.

        Embeddings may be one method's and the clustering another's.
        """
        device = self.device
        given = loaded.train.n_classes if cell.n_clusters == "given" else None
        if cell.clustering == ONE_STEP:
            assert given is not None, "it goes with K given only"
            return shifted_by(1, learned, cell, given, device)
        method = get_method(cell.clustering)
        settings = cell.clustering_settings
        if cell.setup != "inductive":
            return method.cluster(learned, task.labels, settings, n_clusters=given, device=device)
        unseen = learned.embed(loaded.test.pixels)
        labels = loaded.stopping_labels(cell)
        if method.cluster_unseen is not None:
            assert task.validation is not None
            return method.cluster_unseen(
                learned, unseen, labels, task.validation, settings, n_clusters=given, device=device
            )
        found = method.cluster(learned, labels, settings, n_clusters=given, device=device)
        return replace(found, clusters=nearest_clusters(learned, found, unseen))


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that share a training, sorted by what a loaded dataset caches.

    So images are decoded once per dataset, tokens made once per encoder, and pools of views once
    per seed.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training_key, []).append(cell)

    def cached(group: list[Cell]) -> list[str]:
        cell = group[0]
        parts: list[object] = [cell.dataset, cell.input_size, cell.settings.encoder]
        if cell.trained is not None:
            training = cell.trained.training
            parts += [cell.trained.n_tail_blocks, training.seed, training.views, cell.setup]
        return [str(part) for part in parts]

    return sorted(groups.values(), key=cached)
