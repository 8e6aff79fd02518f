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
from shoal.training.data import TrainingData
from shoal.training.model import Model
from shoal.training.tokens import TokenCache
from shoal.training.train_settings import TrainSettings, check_batch_size
from shoal.training.trainer import Trainer
from shoal.training.validation import Validation
from shoal.training.view_pool import ViewPool

OnProgress = Callable[[str, int, int], None]
"""Called with what is counted ('views' or 'steps'), how many of them are done, and how many there are in all."""

OnEpoch = Callable[[dict[str, Any]], None]
"""Called with an epoch's row of metrics."""

TOKENS = "tokens.npy"
VIEWS = "views.npy"
"""The files of a run's tokens, of images and of views, where they do not fit into memory; each process appends its
number."""


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
        """Judge embeddings (N, D) of all images and, where there is a classifier, their clusters (N,)."""
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
    tokens: TokenCache | None = None
    """The trunk's tokens of the images, where they were to be kept."""
    pool: ViewPool | None = None
    """The same for the pool of views."""


def train(
    data: TrainingData,
    model: Model[Any],
    settings: TrainSettings,
    *,
    n_clusters: int | None = None,
    rule: str | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: OnProgress | None = None,
    on_epoch: OnEpoch | None = None,
    stop: Callable[[], bool] | None = None,
    early_stopping: EarlyStopping | None = None,
    keeps_trunk: bool = False,
) -> Trained:
    """Train a model on the device it is on; leave it at the best snapshot, whenever and for whatever reason it ends.

    The best is the one that `early_stopping` chooses. Without, it is the one with the highest validation accuracy, the
    latest on ties; without validation labels, or with `settings.snapshot` 'last', the last. `n_clusters` fixes K, else
    it is estimated by `rule` (the default of `estimate_n_clusters` when None), with the snapshot that is kept.

    With a `folder`, metrics.jsonl is written there after each epoch, checkpoint and best snapshot as often as
    `checkpoint.py` says, and tokens that do not fit into memory while the run lasts. `resume` goes on from what is
    there; a run made with other settings or data is refused. `on_epoch` is told each row of metrics, `progress` first
    how many images and views the trunk has gone over, which it does once, then how many steps of the whole run are
    done. Training ends as soon as `stop` returns True, in several processes after the epoch: with the best snapshot so
    far and can then be resumed, or with `StopTraining` where no epoch is finished. `keeps_trunk` hands on what the
    trunk has computed, for another training, which then lets go of it.
    """
    check_batch_size(settings.batch_size, len(data.training))
    model.check()
    if folder is not None:
        _tidy(folder)
    trainer = Trainer(data, model, settings)
    journal = Journal(folder, model, trainer.optimizer)
    # Reading every image for it is for runs that can be resumed.
    identity = {}
    if folder is not None:
        identity = trainer.identity() | {"n_clusters": n_clusters, "rule": rule}
    if resume:
        journal.resume(identity)
    else:
        journal.begin(identity)
    trainer.n_epochs_left = 0 if journal.is_finished else settings.epochs - journal.n_epochs
    loop = _Loop(trainer, journal, n_clusters, rule, progress, on_epoch, stop, early_stopping)
    # What is not explained nearer to where it happens.
    with (
        explain_out_of_memory(f"training.batch_size (now {settings.batch_size})"),
        others_waiting(False),
    ):
        trainer.prepare(
            folder and folder / TOKENS, folder and folder / VIEWS, loop.counting("views")
        )
        try:
            while not journal.is_finished:
                loop.run_epoch()
        except StopTraining:
            if journal.last is None:
                trainer.clean()
                raise
            loop.keep_last()
        return _best_snapshot(trainer, journal, keeps_trunk=keeps_trunk)


@dataclass(frozen=True)
class _Loop:
    """A run in progress."""

    trainer: Trainer
    journal: Journal
    n_clusters: int | None
    rule: str | None
    progress: OnProgress | None
    on_epoch: OnEpoch | None
    stop: Callable[[], bool] | None
    early_stopping: EarlyStopping | None

    def run_epoch(self) -> None:
        """Train for an epoch, validate, let held-out labels judge where it is time, and write all of it down."""
        trainer = self.trainer
        journal = self.journal
        n_done = journal.n_epochs
        n_epochs = trainer.settings.epochs
        n_steps = len(trainer.data.training) // trainer.settings.batch_size
        began = time.perf_counter()
        row = trainer.run_epoch(
            n_done, self.counting("steps", n_done * n_steps, n_epochs * n_steps)
        )
        validation = trainer.validate(self.n_clusters, self.rule)
        row |= {"validation_accuracy": validation.accuracy, "n_clusters": validation.n_clusters}
        row["seconds"] = round(time.perf_counter() - began, 3)
        is_last = n_done + 1 == n_epochs
        if self._is_judged():
            verdict = Verdict(is_best=False, is_over=False)
            if self._is_time(n_done + 1, is_last):
                verdict = self._judge(n_done + 1)
            is_best = verdict.is_best
            is_last = is_last or verdict.is_over
        else:
            keeps_last = trainer.settings.snapshot == "last"
            before = None if journal.best is None else journal.best.validation
            is_best = keeps_last or validation.is_better_than(before)
        journal.write(validation, row, is_best=is_best, is_last=is_last)
        if self.on_epoch is not None and is_main():
            self.on_epoch(journal.metrics[-1])
        if is_started() and not is_last and self._says_main(self._is_asked()):
            raise StopTraining

    def _is_judged(self) -> bool:
        """Whether held-out labels choose the snapshot, as the main process knows."""
        return self._says_main(self.early_stopping is not None)

    def _is_time(self, epoch: int, is_last: bool) -> bool:
        epochs = () if self.early_stopping is None else self.early_stopping.epochs
        return self._says_main(is_last or epoch in epochs)

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
        """After a stop, keep the last finished epoch where it is the best; its file is the model of the result."""
        last = self.journal.last
        assert last is not None
        if self._is_judged() and self.journal.best is not last:
            self.journal.restore(last)
            self.trainer.forget_embeddings()
            if self.journal.best is None or self._judge(last.epoch).is_best:
                self.journal.best = last
        self.journal.write_best()

    def _says_main(self, value: bool) -> bool:
        return flag_from_main(value, self.trainer.device)

    def _is_asked(self) -> bool:
        return self.stop is not None and self.stop()

    def counting(self, unit: str, before: int = 0, total: int = 0) -> Progress | None:
        """A callback that counts one unit, after some `before`; `total` in all, what the counter says if not given."""
        if not is_main():
            return None

        def tell(done: int, counted: int) -> None:
            if self.progress is not None:
                self.progress(unit, before + done, total or counted)
            if not is_started() and self._is_asked():
                raise StopTraining

        return tell


def _best_snapshot(trainer: Trainer, journal: Journal, *, keeps_trunk: bool) -> Trained:
    """Go back to the best snapshot, and embed and predict every image with it."""
    best = journal.best
    assert best is not None
    journal.restore(best)
    if best is not journal.last:  # else they are of these weights, if there are any
        trainer.forget_embeddings()
    embeddings, predicted = trainer.answer()
    tokens = None
    pool = None
    if keeps_trunk:
        pool = trainer.forward.pool
        if isinstance(trainer.tokens, TokenCache):
            tokens = trainer.tokens
    else:
        trainer.clean()
    return Trained(
        epoch=best.epoch,
        validation=best.validation,
        embeddings=embeddings,
        predicted=predicted,
        metrics=journal.metrics,
        is_done=journal.is_finished,
        tokens=tokens,
        pool=pool,
    )


def _tidy(folder: Path) -> None:
    """Make the folder, and remove what a killed run could not: its tokens, and drafts of files it was writing."""
    if is_main():
        make_folder(folder)
        for pattern in (f"{TOKENS}.*", f"{VIEWS}.*", ".*.tmp"):
            for left in folder.glob(pattern):
                left.unlink(missing_ok=True)
    barrier()
