"""The training loop: train, validate and log each epoch, and return the best snapshot."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.distributed import broadcast, is_started
from shoal.settings import Plain, to_dict
from shoal.training.checkpoint import Checkpointer
from shoal.training.model import Model
from shoal.training.task import Task
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import Trainer
from shoal.training.validation import Validation

# Called with the unit ('steps' in training), the number done and the total
OnProgress = Callable[[str, int, int], None]

# Called with an epoch's row of metrics
OnEpoch = Callable[[Plain], None]


class StopTraining(Exception):
    """A stop was requested; `train` raises it only if no epoch is finished."""


# Evaluates epochs on held-out labels and decides when to stop: called with an epoch, embeddings (N,
# D) of all images and, if the model has a classifier, its predictions (N,), it returns whether this
# is the epoch to use so far (no earlier one is significantly better), and whether training should
# stop. Its attribute `epochs` has the epochs to evaluate, counted from 1; the last epoch is always
# evaluated.
EarlyStopping = Any


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of training: the best snapshot, whose weights the model has."""

    embeddings: Tensor
    """(N, D) of all images, on the device."""
    predicted: Ints | None = None
    """(N,) the cluster of each image by the model's classifier, if it has one."""
    epoch: int = 0
    """The epoch of the snapshot, counted from 1; 0 if nothing was trained."""
    validation: Validation | None = None
    metrics: list[Plain] = field(default_factory=list)
    """A row per epoch."""
    is_done: bool = True
    """Whether training is complete; if not, it was stopped and can be resumed."""


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

    If the task has no K, `rule` estimates it for that snapshot. With a `folder`, metrics.jsonl is
    written after each epoch, and checkpoints as described in `checkpoint.py`. `resume` continues a
    run that was started with the same settings and data. `hooks` are the optional attributes of
    `Loop`.
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


@dataclass(frozen=True)
class Loop:
    """Training in progress."""

    trainer: Trainer
    checkpointer: Checkpointer
    rule: str
    progress: OnProgress | None = None
    """Called with the number of finished steps of the whole run."""
    on_epoch: OnEpoch | None = None
    stop: Callable[[], bool] = lambda: False
    """Asked after every step, or with several processes after every epoch; if it returns True,
    training ends with the best snapshot so far and can be resumed."""
    early_stopping: EarlyStopping = None
    """Chooses the best snapshot; given only to the main process. If there is none, the best
    snapshot is the one with the highest validation accuracy, the latest on ties; without validation
    labels, or if `settings.snapshot` is 'last', the last one."""

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
