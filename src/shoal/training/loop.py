"""The training loop: train, validate and log each epoch, and return the best snapshot.

Its checkpoints are everything that a run needs to resume as if it had never stopped:

- checkpoint.safetensors: the model, the optimizer's velocities, the metrics so far and the epoch of
  the best snapshot; without the first two when the run is finished.
- best-<epoch>.safetensors: the model of that snapshot; older ones are removed once a checkpoint
  names a newer one.
- metrics.jsonl: a row per epoch.

Batches, views and random neighbors are functions of seed and epoch, so no state of a generator is
stored. Files are written atomically, so a killed run always leaves a complete checkpoint.
Small checkpoints are written after every epoch, large ones every 20 seconds, because an epoch may
take less time than its checkpoint.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.arrays import Ints, nan_to_null
from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.distributed import barrier, broadcast, is_main, is_started
from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, make_folder, write_text
from shoal.runs import LEFTOVERS, SNAPSHOTS, reading
from shoal.settings import Plain, differences, to_dict
from shoal.training.inputs import Task
from shoal.training.model import Model, Tensors
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import OPTIMIZER, Sgd, Trainer
from shoal.training.validation import Validation

FORMAT = "shoal-3"

CHECKPOINT = "checkpoint.safetensors"

METRICS = "metrics.jsonl"

# Checkpoints up to this size are written after every epoch
SMALL_BYTES = 10 << 20

# Seconds between larger checkpoints; a killed run loses at most this much work
SAVE_EVERY_S = 20.0

# Called with the unit ('steps' in training), the number done and the total
OnProgress = Callable[[str, int, int], None]

# Called with an epoch's row of metrics
OnEpoch = Callable[[Plain], None]

# Evaluates epochs on held-out labels and decides when to stop: called with an epoch, embeddings (N,
# D) of all images and, if the model has a classifier, its predictions (N,), it returns whether this
# is the epoch to use so far (no earlier one is significantly better), and whether training should
# stop. Its attribute `epochs` has the epochs to evaluate, counted from 1; the last epoch is always
# evaluated.
EarlyStopping = Any


class StopTraining(Exception):
    """A stop was requested; `train` raises it only if no epoch is finished."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of training: the best snapshot, whose weights the model has."""

    embeddings: Tensor  # (N, D) of all images, on the device
    # (N,) the cluster of each image by the model's classifier, if it has one
    predicted: Ints | None = None
    # The epoch of the snapshot, counted from 1; 0 if nothing was trained
    epoch: int = 0
    validation: Validation | None = None
    # A row per epoch
    metrics: list[Plain] = field(default_factory=list)
    # Whether training is complete; if not, it was stopped and can be resumed
    is_done: bool = True


def train(
    task: Task,
    model: Model,
    settings: TrainSettings,
    *,
    rule: str = DEFAULT_RULE,
    folder: Path | None = None,
    resume: bool = False,
    **hooks: Any,
) -> Trained:
    """Train a model on its device, and restore its best snapshot, however training ends.

    If the task has no K, `rule` estimates it for that snapshot. With a `folder`, metrics.jsonl and
    the checkpoints described at the top of this module are written. `resume` continues a run that
    was started with the same settings and data. `hooks` are the optional attributes of `Loop`.
    """
    model.check()
    trainer = Trainer(task, model, settings)
    identity = {
        "training": to_dict(settings),
        "method": model.identity(),
        "encoder": model.encoder.identity(),
        "data": task.identity(),
        "n_clusters": task.n_clusters,
        "rule": rule,
    }
    checkpointer = Checkpointer(folder, model, trainer.optimizer, identity, resume=resume)
    loop = Loop(trainer, checkpointer, rule, **hooks)
    trainer.prepare(is_finished=checkpointer.is_finished)
    try:
        while not checkpointer.is_finished:
            loop.run_epoch()
    except StopTraining:
        if checkpointer.last is None:
            raise
        loop.evaluate_last()
    return loop.best_snapshot()


def write_checkpoint(file: Path, tensors: Mapping[str, Tensor], about: Plain) -> None:
    """Write named tensors and JSON to one file, atomically."""
    stored = {name: value.detach().contiguous() for name, value in tensors.items()}
    with atomic_file(file) as out:
        # One entry of metadata, because safetensors writes several in random order.
        out.write(save(stored, metadata={FORMAT: json.dumps(about)}))


def read_checkpoint(file: Path) -> tuple[Tensors, Plain]:
    with reading(file):
        try:
            with safe_open(file, framework="pt") as opened:
                entries = opened.metadata() or {}
                names = list(opened.keys())
                tensors = {name: opened.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ValueError(f"not a checkpoint: {error}") from error
        about = json.loads(entries[FORMAT])
        if not isinstance(about, dict):
            raise ValueError("its metadata is not a JSON object")
    return tensors, about


def is_finished(folder: Path) -> bool:
    file = folder / CHECKPOINT
    return file.is_file() and bool(read_checkpoint(file)[1].get("is_finished"))


def load_weights(model: Model, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load the tensors of a checkpoint into a model; raise a DataError if a name or a shape does
    not fit."""
    expected = {name: value.shape for name, value in model.saved_tensors().items()}
    found = {name: value.shape for name, value in tensors.items() if not name.startswith(OPTIMIZER)}
    if found != expected:
        raise DataError(
            f"{where}: the weights do not fit; was it made with another encoder or method, or was "
            "config.yaml or model.json edited?"
        )
    model.load_tensors(tensors)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The networks after an epoch, counted from 1, and their validation."""

    epoch: int
    validation: Validation
    tensors: Tensors


class Checkpointer:
    """The metrics and snapshots of a run, in memory and, with a folder, on the disk.

    Only the main process writes.
    """

    def __init__(
        self,
        folder: Path | None,
        model: Model,
        optimizer: Sgd,
        identity: Plain,
        *,
        resume: bool = False,
    ) -> None:
        """Start a run, or resume it from its last checkpoint, if there is one.

        `identity` must be the same as that of the run which is resumed.
        """
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.identity = identity
        # A row per finished epoch
        self.metrics: list[Plain] = []
        self.is_finished = False
        # After the last epoch
        self.last: Snapshot | None = None
        # The one to use if training ends here
        self.best: Snapshot | None = None
        self._saved_at = -math.inf
        if folder is None:
            return
        is_resumed = resume and (folder / CHECKPOINT).is_file()
        if is_main():
            make_folder(folder)
            outdated = [LEFTOVERS]
            if not is_resumed:
                outdated += [CHECKPOINT, METRICS, SNAPSHOTS]
            for pattern in outdated:
                for old in folder.glob(pattern):
                    old.unlink()
        barrier()
        if is_resumed:
            self._resume(folder / CHECKPOINT)

    def _resume(self, file: Path) -> None:
        tensors, about = read_checkpoint(file)
        different = differences(self.identity, about.get("identity", {}))
        if different:
            raise UsageError(
                f"{file}: cannot be resumed, because the run was started with different settings: "
                f"{'; '.join(different)}; use the same ones, or start a new run"
            )
        with reading(file):
            self.metrics = about["metrics"]
            self.is_finished = about["is_finished"]
            if about["best"] is not None:
                epoch = int(about["best_epoch"])
                best, _ = read_checkpoint(self._best_file(epoch))
                validation = Validation(**about["best"])
                self.best = Snapshot(epoch=epoch, validation=validation, tensors=best)
            if not self.is_finished:
                load_weights(self.model, tensors, str(file))
                self.optimizer.load_tensors(tensors)
                self.last = self._snapshot(Validation(**about["last"]))
        if is_main():
            self._follow_checkpoint()

    def write(
        self,
        validation: Validation,
        row: Plain,
        *,
        is_best: bool,
        is_last: bool = False,
    ) -> None:
        """Record an epoch: its row of metrics, its snapshot if it is the best, and the checkpoint.

        The checkpoint of the last epoch needs no weights: only the best snapshot is used later.
        """
        self.metrics.append(nan_to_null(row) | {"is_best": is_best})
        self.is_finished = is_last
        self.last = self._snapshot(validation)
        if is_best:
            self.best = self.last
        if self.folder is None or not is_main():
            return
        tensors: Tensors = {}
        if not is_last:
            tensors = self.model.saved_tensors() | self.optimizer.saved_tensors()
        n_bytes = sum(value.nbytes for value in tensors.values())
        if n_bytes > SMALL_BYTES and time.monotonic() < self._saved_at + SAVE_EVERY_S:
            self._write_metrics()
            return
        self.write_best()
        about = {
            "metrics": self.metrics,
            "identity": self.identity,
            "is_finished": is_last,
            "last": asdict(validation),
            "best": self.best and asdict(self.best.validation),
            "best_epoch": self.best and self.best.epoch,
        }
        write_checkpoint(self.folder / CHECKPOINT, tensors, about)
        self._saved_at = time.monotonic()
        self._follow_checkpoint()

    def _snapshot(self, validation: Validation) -> Snapshot:
        copies = {name: value.clone() for name, value in self.model.saved_tensors().items()}
        return Snapshot(epoch=len(self.metrics), validation=validation, tensors=copies)

    def write_best(self) -> None:
        """Write the best snapshot, before the checkpoint that names it, unless its file exists."""
        if self.folder is None or self.best is None or not is_main():
            return
        file = self._best_file(self.best.epoch)
        if not file.is_file():
            write_checkpoint(file, self.best.tensors, {"epoch": self.best.epoch})

    def _write_metrics(self) -> None:
        assert self.folder is not None
        rows = "".join(f"{json.dumps(row)}\n" for row in self.metrics)
        write_text(self.folder / METRICS, rows)

    def _follow_checkpoint(self) -> None:
        """Write the metrics of the checkpoint, and remove snapshots other than its best; a killed
        run may not have done so."""
        assert self.folder is not None
        self._write_metrics()
        for old in self.folder.glob(SNAPSHOTS):
            if self.best is None or old != self._best_file(self.best.epoch):
                old.unlink()

    def restore(self, snapshot: Snapshot) -> None:
        load_weights(self.model, snapshot.tensors, "the best snapshot")

    def _best_file(self, epoch: int) -> Path:
        assert self.folder is not None
        return self.folder / SNAPSHOTS.replace("*", str(epoch))


@dataclass(frozen=True)
class Loop:
    """Training in progress."""

    trainer: Trainer
    checkpointer: Checkpointer
    rule: str
    # Called with the number of finished steps of the whole run
    progress: OnProgress | None = None
    on_epoch: OnEpoch | None = None
    # Asked after every step, or with several processes after every epoch; if it returns True,
    # training ends with the best snapshot so far and can be resumed
    stop: Callable[[], bool] = lambda: False
    # Chooses the best snapshot; given only to the main process. If there is none, the best snapshot
    # is the one with the highest validation accuracy, the latest on ties; without validation
    # labels, or if `settings.snapshot` is 'last', the last one.
    early_stopping: EarlyStopping = None

    def run_epoch(self) -> None:
        """Train for an epoch, validate it, evaluate it if early stopping is due, and write it."""
        trainer = self.trainer
        checkpointer = self.checkpointer
        early_stopping = self.early_stopping
        n_finished = len(checkpointer.metrics)
        epoch = n_finished + 1

        def report(n_done: int, n_steps: int) -> None:
            if self.progress is not None:
                total = trainer.settings.epochs * n_steps
                self.progress("steps", n_finished * n_steps + n_done, total)
            if not is_started() and self.stop():
                raise StopTraining

        start = time.perf_counter()
        row = trainer.run_epoch(n_finished, report)
        validation = trainer.validate(self.rule)
        row |= {"validation_accuracy": validation.accuracy, "n_clusters": validation.n_clusters}
        row["seconds"] = round(time.perf_counter() - start, 3)
        is_last = epoch == trainer.settings.epochs
        is_best = False
        if early_stopping is None:
            best = checkpointer.best
            is_preferred = best is None or validation.is_better_than(best.validation)
            is_best = trainer.settings.snapshot == "last" or is_preferred
        # Only the main process has `early_stopping`, so it broadcasts every decision.
        is_due = early_stopping is not None and (is_last or epoch in early_stopping.epochs)
        if self._broadcast(is_due):
            is_best, should_stop = self._evaluate(epoch)
            is_last = is_last or self._broadcast(should_stop)
        is_best = self._broadcast(is_best)
        checkpointer.write(validation, row, is_best=is_best, is_last=is_last)
        if self.on_epoch is not None:
            self.on_epoch(checkpointer.metrics[-1])
        if is_started() and not is_last and self._broadcast(self.stop()):
            raise StopTraining

    def _evaluate(self, epoch: int) -> tuple[bool, bool]:
        """Embed in all processes, and evaluate in the main one; its decision counts."""
        embeddings = self.trainer.embed_all()
        if self.early_stopping is None:
            return False, False
        return self.early_stopping(epoch, embeddings, self.trainer.predict(embeddings))

    def evaluate_last(self) -> None:
        """After a stop, evaluate the last finished epoch, which may be the best, and write the best
        snapshot."""
        checkpointer = self.checkpointer
        last = checkpointer.last
        assert last is not None
        if self._broadcast(self.early_stopping is not None) and checkpointer.best is not last:
            checkpointer.restore(last)
            self.trainer.forget_embeddings()
            if checkpointer.best is None or self._broadcast(self._evaluate(last.epoch)[0]):
                checkpointer.best = last
        checkpointer.write_best()

    def best_snapshot(self) -> Trained:
        checkpointer = self.checkpointer
        best = checkpointer.best
        assert best is not None
        checkpointer.restore(best)
        if best is not checkpointer.last:  # otherwise cached embeddings are up to date
            self.trainer.forget_embeddings()
        embeddings = self.trainer.embed_all()
        return Trained(
            embeddings=embeddings,
            predicted=self.trainer.predict(embeddings),
            epoch=best.epoch,
            validation=best.validation,
            metrics=checkpointer.metrics,
            is_done=checkpointer.is_finished,
        )

    def _broadcast(self, value: bool) -> bool:
        return bool(broadcast(value, self.trainer.device))
