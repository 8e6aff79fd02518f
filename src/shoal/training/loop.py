"""The training loop: epoch after epoch, train, validate, record, and keep the best snapshot.

A method brings its model; everything else is here and in `trainer.py`.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import barrier, flag_from_main, is_main, is_started, others_waiting
from shoal.encoders.embed import explain_out_of_memory
from shoal.files import make_folder
from shoal.progress import Progress
from shoal.training.checkpoint import Journal
from shoal.training.model import Model
from shoal.training.task import Task
from shoal.training.train_settings import TrainSettings, check_batch_size
from shoal.training.trainer import Trainer
from shoal.training.validation import Validation

OnProgress = Callable[[str, int, int], None]
"""Called with what is counted, 'steps', how many of them are done, and how many there are in
all."""

OnEpoch = Callable[[dict[str, Any]], None]
"""Called with an epoch's row of metrics."""


class StopTraining(Exception):
    """Training was asked to stop; `train` raises it only where no epoch is finished."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What held-out labels say of an epoch."""

    is_best: bool
    """Whether it is kept rather than the best one before it."""
    is_over: bool
    """Whether no further epoch is needed."""


class EarlyStopping(Protocol):
    """Compares epochs by labels that the loss does not see, and ends training early."""

    @property
    def epochs(self) -> Collection[int]:
        """After which epochs, counted from 1, it is asked; it is also asked where training ends."""
        ...

    def __call__(self, epoch: int, embeddings: Tensor, predicted: Ints | None) -> Verdict:
        """Judge embeddings (N, D) of all images and, where there is a classifier, their clusters
        (N,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The outcome of a run; the networks hold the weights of the best snapshot."""

    epoch: int
    """The epoch of that snapshot, counted from 1."""
    validation: Validation
    embeddings: Tensor
    """(N, D) of all images, from that snapshot, on the device, compact."""
    predicted: Ints | None
    """(N,) the cluster of each image, where the model has a classifier."""
    metrics: list[dict[str, Any]]
    """A row per epoch."""
    is_done: bool
    """Whether no epoch is left; else training was stopped, and can be resumed."""


def train(
    task: Task,
    model: Model[Any],
    settings: TrainSettings,
    *,
    rule: str | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: OnProgress | None = None,
    on_epoch: OnEpoch | None = None,
    stop: Callable[[], bool] | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Trained:
    """Train a model on the device it is on; leave it at the best snapshot, whenever and for
    whatever reason it ends.

    The best is the one that `early_stopping` chooses. Without, it is the one with the highest
    validation accuracy, the latest on ties; without validation labels, or with `settings.snapshot`
    'last', the last. K is that of the task, else it is estimated by `rule` (the default of
    `estimate_n_clusters` when None), with the snapshot that is kept.

    With a `folder`, metrics.jsonl is written there after each epoch, checkpoint and best snapshot
    as often as `checkpoint.py` says. `resume` goes on from what is there; a run made with other
    settings or data is refused. `on_epoch` is told each row of metrics, `progress` how many steps
    of the whole run are done. Training ends as soon as `stop` returns True, in several processes
    after the epoch: with the best snapshot so far and can then be resumed, or with `StopTraining`
    where no epoch is finished.
    """
    check_batch_size(settings.batch_size, len(task.training))
    model.check()
    if folder is not None:
        _tidy(folder)
    trainer = Trainer(task, model, settings)
    journal = Journal(folder, model, trainer.optimizer)
    # Reading every image for it is for runs that can be resumed.
    identity = {}
    if folder is not None:
        identity = trainer.identity() | {"n_clusters": task.n_clusters, "rule": rule}
    if resume:
        journal.resume(identity)
    else:
        journal.begin(identity)
    loop = _Loop(trainer, journal, rule, progress, on_epoch, stop, early_stopping)
    # What is not explained nearer to where it happens.
    with (
        explain_out_of_memory(f"training.batch_size (now {settings.batch_size})"),
        others_waiting(False),
    ):
        trainer.prepare(is_finished=journal.is_finished)
        try:
            while not journal.is_finished:
                loop.run_epoch()
        except StopTraining:
            if journal.last is None:
                raise
            loop.keep_last()
        return _best_snapshot(trainer, journal)


@dataclass(frozen=True)
class _Loop:
    """A run in progress."""

    trainer: Trainer
    journal: Journal
    rule: str | None
    progress: OnProgress | None
    on_epoch: OnEpoch | None
    stop: Callable[[], bool] | None
    early_stopping: EarlyStopping | None

    def run_epoch(self) -> None:
        """Train for an epoch, validate, let held-out labels judge where it is time, and write all
        of it down."""
        trainer = self.trainer
        journal = self.journal
        n_done = journal.n_epochs
        n_epochs = trainer.settings.epochs
        n_steps = len(trainer.task.training) // trainer.settings.batch_size
        began = time.perf_counter()
        row = trainer.run_epoch(n_done, self._counting(n_done * n_steps, n_epochs * n_steps))
        validation = trainer.validate(self.rule)
        row |= {"validation_accuracy": validation.accuracy, "n_clusters": validation.n_clusters}
        row["seconds"] = round(time.perf_counter() - began, 3)
        is_last = n_done + 1 == n_epochs
        if self._says_main(self.early_stopping is not None):
            asked = self.early_stopping is not None and n_done + 1 in self.early_stopping.epochs
            is_best = False
            if self._says_main(is_last or asked):
                verdict = self._judge(n_done + 1)
                is_best = verdict.is_best
                is_last = is_last or verdict.is_over
        else:
            before = None if journal.best is None else journal.best.validation
            is_best = trainer.settings.snapshot == "last" or validation.is_better_than(before)
        journal.write(validation, row, is_best=is_best, is_last=is_last)
        if self.on_epoch is not None and is_main():
            self.on_epoch(journal.metrics[-1])
        if is_started() and not is_last and self._says_main(self._is_asked()):
            raise StopTraining

    def _judge(self, epoch: int) -> Verdict:
        """Judge the networks as they are now, in the main process; the others wait, and help it."""
        embeddings, predicted = self.trainer.answer()  # which all processes share
        verdict = Verdict(is_best=False, is_over=False)
        if self.early_stopping is not None:
            with others_waiting():
                verdict = self.early_stopping(epoch, embeddings, predicted)
        return Verdict(
            is_best=self._says_main(verdict.is_best), is_over=self._says_main(verdict.is_over)
        )

    def keep_last(self) -> None:
        """After a stop, keep the last finished epoch where it is the best; its file is the model of
        the result."""
        last = self.journal.last
        assert last is not None
        is_judged = self._says_main(self.early_stopping is not None)
        if is_judged and self.journal.best is not last:
            self.journal.restore(last)
            self.trainer.forget_embeddings()
            if self.journal.best is None or self._judge(last.epoch).is_best:
                self.journal.best = last
        self.journal.write_best()

    def _says_main(self, value: bool) -> bool:
        return flag_from_main(value, self.trainer.device)

    def _is_asked(self) -> bool:
        return self.stop is not None and self.stop()

    def _counting(self, before: int, total: int) -> Progress | None:
        """A callback that counts the steps of the whole run, and stops it where that is asked."""
        if not is_main():
            return None

        def tell(done: int, of_epoch: int) -> None:
            if self.progress is not None:
                self.progress("steps", before + done, total)
            if not is_started() and self._is_asked():
                raise StopTraining

        return tell


def _best_snapshot(trainer: Trainer, journal: Journal) -> Trained:
    """Go back to the best snapshot, and embed and predict every image with it."""
    best = journal.best
    assert best is not None
    journal.restore(best)
    if best is not journal.last:  # else they are of these weights, if there are any
        trainer.forget_embeddings()
    embeddings, predicted = trainer.answer()
    return Trained(
        epoch=best.epoch,
        validation=best.validation,
        embeddings=embeddings,
        predicted=predicted,
        metrics=journal.metrics,
        is_done=journal.is_finished,
    )


def _tidy(folder: Path) -> None:
    """Make the folder, and remove drafts of files that a killed run was writing."""
    if is_main():
        make_folder(folder)
        for left in folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)
    barrier()
