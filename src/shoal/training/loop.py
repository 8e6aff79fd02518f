"""The training loop: epoch after epoch, train, validate, record, and keep the best snapshot.

A method brings its model; everything else is here and in `trainer.py`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import barrier, flag_from_main, is_main, others_waiting
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

GoesOn = Callable[[int, Tensor, Ints | None], bool]
"""Asked between two epochs, with how many are done, the embeddings (N, D) of all images and, where there is a
classifier, their clusters (N,); False ends training."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is counted ('views' or 'steps'), how many of them are done, and how many there are in all."""

TOKENS = "tokens.npy"
VIEWS = "views.npy"
"""The files of a run's tokens, of images and of views, where they do not fit into memory; each process appends its
number."""


class StopTraining(Exception):
    """Raised by a caller's `progress` to end training: with the best snapshot so far, where an epoch is finished."""


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
    """Whether no epoch is left: all were done, or who was asked said that no more are needed. Else it was stopped."""
    tokens: TokenCache | None = None
    """The trunk's tokens of the images, where they were to be kept."""
    pool: ViewPool | None = None
    """The same for the pool of views."""


def train(
    data: TrainingData,
    model: Model,
    settings: TrainSettings,
    *,
    n_clusters: int | None = None,
    rule: str | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: OnProgress | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    goes_on: GoesOn | None = None,
    keeps_trunk: bool = False,
) -> Trained:
    """Train a model on the device it is on; leave it at the best snapshot.

    The best is the one with the highest validation accuracy, the latest on ties; without validation labels, or with
    `settings.snapshot` 'last', it is the last. `n_clusters` fixes K, else it is estimated by `rule` (the default of
    `estimate_n_clusters` when None), with the snapshot that is kept.

    With a `folder`, metrics.jsonl is written there after each epoch, checkpoint and best snapshot as often as
    `checkpoint.py` says, and tokens that do not fit into memory while the run lasts. `resume` goes on from what is
    there; a run made with other settings or data is refused. `on_epoch` is told each row of metrics, `progress` first
    how many images and views the trunk has gone over, which it does once, then how many steps of the whole run are
    done. Where it raises `StopTraining` after an epoch, the best snapshot so far is returned, and the run can be
    resumed; before that, it is raised on. Where `goes_on` says False no epoch is left, also for a resumed run.
    `keeps_trunk` hands on what the trunk has computed, for another training, which then lets go of it.
    """
    check_batch_size(settings.batch_size, len(data.training))
    model.check()
    if folder is not None:
        _tidy(folder)
    trainer = Trainer(data, model, settings)
    journal = Journal(folder, model, trainer.optimizer, keeps_last=settings.snapshot == "last")
    # Reading every image for it is for runs that can be resumed.
    identity = (
        {} if folder is None else trainer.identity() | {"n_clusters": n_clusters, "rule": rule}
    )
    start = journal.resume(identity) if resume else journal.begin(identity)
    trainer.n_epochs_left = settings.epochs - start
    # What is not explained nearer to where it happens.
    with (
        explain_out_of_memory(f"training.batch_size (now {settings.batch_size})"),
        others_waiting(False),
    ):
        trainer.prepare(
            folder and folder / TOKENS, folder and folder / VIEWS, _counting(progress, "views")
        )
        is_done = True
        try:
            for epoch in range(start, settings.epochs):
                # Asked before the next epoch and not after the last one, so that a resumed run is asked too.
                if epoch > 0 and _is_over(trainer, goes_on, epoch):
                    break
                _run_epoch(trainer, journal, epoch, n_clusters, rule, progress)
                if on_epoch is not None and is_main():
                    on_epoch(journal.metrics[-1])
            journal.finish(settings.epochs)
        except StopTraining:
            is_done = False
            if journal.best is None:
                trainer.clean()
                raise
            journal.write_best()  # the newest snapshot in the folder is the model of the answer
        return _best_snapshot(trainer, journal, is_done=is_done, keeps_trunk=keeps_trunk)


def _is_over(trainer: Trainer, goes_on: GoesOn | None, epoch: int) -> bool:
    """Whether training ends after some epochs, as the main process is told; the others wait, and help it to judge."""
    if not flag_from_main(goes_on is not None, trainer.device):
        return False
    trainer.embed_all()  # which all processes share
    with others_waiting():
        is_over = goes_on is not None and not goes_on(epoch, *trainer.answer())
    return flag_from_main(is_over, trainer.device)


def _run_epoch(
    trainer: Trainer,
    journal: Journal,
    epoch: int,
    n_clusters: int | None,
    rule: str | None,
    progress: OnProgress | None,
) -> None:
    """Train for an epoch, validate, and write both down."""
    began = time.perf_counter()
    settings = trainer.settings
    n_steps = len(trainer.data.training) // settings.batch_size
    row = trainer.run_epoch(
        epoch, _counting(progress, "steps", epoch * n_steps, settings.epochs * n_steps)
    )
    validation = trainer.validate(n_clusters, rule)
    row |= {"validation_accuracy": validation.accuracy, "n_clusters": validation.n_clusters}
    journal.write(epoch + 1, validation, row | {"seconds": round(time.perf_counter() - began, 3)})


def _best_snapshot(
    trainer: Trainer, journal: Journal, *, is_done: bool, keeps_trunk: bool
) -> Trained:
    """Go back to the best snapshot, and embed and predict every image with it."""
    validation = journal.restore_best()
    if journal.best_epoch < len(
        journal.metrics
    ):  # else they are of these weights, if there are any
        trainer.forget_embeddings()
    embeddings, predicted = trainer.answer()
    if not keeps_trunk:
        trainer.clean()
    return Trained(
        epoch=journal.best_epoch,
        validation=validation,
        embeddings=embeddings,
        predicted=predicted,
        metrics=journal.metrics,
        is_done=is_done,
        tokens=trainer.tokens if keeps_trunk and isinstance(trainer.tokens, TokenCache) else None,
        pool=trainer.forward.pool if keeps_trunk else None,
    )


def _tidy(folder: Path) -> None:
    """Make the folder, and remove what a killed run could not: its tokens, and drafts of files it was writing."""
    if is_main():
        make_folder(folder)
        for pattern in (f"{TOKENS}.*", f"{VIEWS}.*", ".*.tmp"):
            for left in folder.glob(pattern):
                left.unlink(missing_ok=True)
    barrier()


def _counting(
    progress: OnProgress | None, unit: str, before: int = 0, total: int = 0
) -> Progress | None:
    """A callback that counts one unit, after some `before`; `total` in all, what the counter says if not given."""
    if progress is None or not is_main():
        return None
    return lambda done, counted: progress(unit, before + done, total or counted)
