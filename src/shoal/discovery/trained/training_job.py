"""One training of `shoal discover`: progress bars, metrics, and how it is stopped with the best result so far."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from shoal.discovery.answers import Answer
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import Readable
from shoal.discovery.reporter import NOTE, Listener, Reporter
from shoal.distributed import is_started
from shoal.errors import UsageError, missing_package
from shoal.methods.clusters import Representation
from shoal.methods.method import TrainedSettings
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.progress import Progress, about
from shoal.runs import Run
from shoal.training.collapse import collapse_statistics, describe_collapse
from shoal.training.loop import EarlyStopping, OnEpoch, OnProgress, StopTraining
from shoal.training.model import Model
from shoal.training.tokens import TokenCache
from shoal.words import count

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

STOPPING = "\nstopping, with the best result so far; Ctrl-C once more quits at once\n"

PHASES = {"views": "preparing views", "steps": "training"}
"""What is done while views, and then steps, are counted."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingJob:
    """Inputs and outputs of the trainings of one run."""

    frozen: Representation
    first: Answer
    """The result without training."""
    images: Readable
    run: Run
    settings: DiscoverySettings
    resume: bool
    reporter: Reporter
    tensorboard: bool
    n_tail_blocks: int | None = None
    """Those of the encoder that `frozen` comes from."""
    stop: Callable[[], bool] = lambda: False
    """Whether training is to stop, as `stop_request` says."""

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return self.frozen.embeddings.device

    @property
    def n_epochs(self) -> int:
        """Epochs of a training."""
        return int(self.settings.of_method.training.epochs)

    @property
    def n_clusters(self) -> int | None:
        """K that training is told: the given number, or that of the first result where a method needs one."""
        if get_method(self.settings.method).needs_n_clusters:
            return self.first.discovery.n_clusters
        return self.settings.n_clusters


def check_tensorboard(settings: DiscoverySettings) -> None:
    """Refuse to write for TensorBoard where it is not installed, or where there will be no epoch to write."""
    if not settings.is_trained:
        raise UsageError(
            "tensorboard: nothing is to be trained, so there is nothing to write; leave out --tensorboard"
        )
    tensorboard_writer()


def tensorboard_writer() -> "type[SummaryWriter]":
    """The class that writes event files; a missing package is an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_package("tensorboard", "writing TensorBoard files") from error
    return SummaryWriter


def event_writer(folder: Path) -> OnEpoch:
    """Open an event file in `folder`; what comes back writes an epoch's row of metrics."""
    writer = tensorboard_writer()(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch" and value is not None:
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    return write


@contextmanager
def stop_request(max_minutes: float | None = None) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether to stop: after the first Ctrl-C, or when the minutes are over.

    The second Ctrl-C interrupts. It goes round all trainings and what lies between them, so that Ctrl-C costs a result
    at no moment. Where there are several processes, or this is not the main thread, Ctrl-C does what it always does.
    """
    deadline = float("inf")
    if max_minutes is not None:
        deadline = time.monotonic() + 60 * max_minutes
    presses: list[int] = []

    def is_asked() -> bool:
        return bool(presses) or time.monotonic() >= deadline

    if is_started() or threading.current_thread() is not threading.main_thread():
        yield is_asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)  # the next one interrupts
        presses.append(number)
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, STOPPING.encode())  # print might already be in the middle of a line

    before = signal.signal(signal.SIGINT, note)
    try:
        yield is_asked
    finally:
        signal.signal(signal.SIGINT, before)


def train_on(
    job: TrainingJob,
    task: Task,
    settings: TrainedSettings,
    folder: Path,
    *,
    early_stopping: EarlyStopping | None = None,
    start: Model[Any] | None = None,
) -> Representation | None:
    """Train on a task, with progress; None where it was stopped before an epoch was finished.

    What the trunk has computed is kept where another training follows. `start` has the weights to begin with.
    """
    watch = _collapse_watch(job.reporter.say)
    is_last = folder == job.run.path
    listener = _EpochListener(
        reporter=job.reporter,
        n_epochs=settings.training.epochs,
        watch=watch,
        write=event_writer(folder) if job.tensorboard and is_last else None,
    )
    try:
        with _bars(job.reporter) as progress:
            learned = get_method(job.settings.method).represent(
                _with_tokens(job, task, settings),
                settings,
                device=job.device,
                folder=folder,
                resume=job.resume,
                progress=progress,
                on_epoch=listener,
                stop=job.stop,
                early_stopping=early_stopping,
                keeps_trunk=not is_last,
                start=start,
            )
    except StopTraining:
        note_stopped(job, len(Run(folder).metrics))
        return None
    if not learned.is_done:
        note_stopped(job, len(learned.metrics))
    watch(collapse_statistics(learned.embeddings))
    # What is there need not be embedded again, which processes that help would have to take part in.
    return replace(learned, frozen=lambda: job.frozen.embeddings)


def _with_tokens(job: TrainingJob, task: Task, settings: TrainedSettings) -> Task:
    """The task with the tokens that embedding has left, where training splits the encoder as that did."""
    left = job.frozen.tokens
    if left is None or task.tokens is not None or settings.n_tail_blocks != job.n_tail_blocks:
        return task
    return replace(task, tokens=TokenCache(left.tokens, 2 * settings.training.batch_size))


@contextmanager
def _bars(reporter: Reporter) -> Iterator[OnProgress]:
    """Show views and then steps, with the time left of either."""
    shown: dict[str, Progress] = {}
    with ExitStack() as bars:

        def tell(unit: str, done: int, total: int) -> None:
            if unit not in shown:
                bars.close()  # the bar of the unit before
                shown[unit] = bars.enter_context(reporter.progress(PHASES[unit], unit))
            shown[unit](done, total)

        yield tell


def note_stopped(job: TrainingJob, n_epochs: int) -> None:
    """Write down that training was stopped before its end, and say so."""
    job.run.note(stopped_early={"epochs": n_epochs, "of": job.n_epochs})
    job.reporter.say(
        f"training was stopped after {n_epochs} of {job.n_epochs} epochs; "
        "the same command with --resume goes on with it"
    )


def _collapse_watch(say: Listener) -> OnEpoch:
    """Say once, when the statistics of embeddings show it, that training has collapsed."""
    told: list[str] = []

    def watch(statistics: dict[str, Any]) -> None:
        collapse = describe_collapse(statistics)
        if collapse is not None and not told:
            told.append(collapse)
            say(NOTE + collapse)

    return watch


@dataclass(kw_only=True)
class _EpochListener:
    """Tells an epoch's metrics to whoever listens to details, to TensorBoard, and once how long it will take."""

    reporter: Reporter
    n_epochs: int
    watch: OnEpoch
    write: OnEpoch | None
    has_told_time: bool = False

    def __call__(self, row: dict[str, Any]) -> None:
        epoch = row["epoch"]
        seen = ""
        if row["validation_accuracy"] is not None:
            accuracy = 100 * row["validation_accuracy"]
            seen = f", validation accuracy {accuracy:.1f} %, K {row['n_clusters']}"
        self.reporter.detail(f"epoch {epoch}: loss {row['loss']:.4f}{seen}, {row['seconds']:.1f} s")
        n_left = self.n_epochs - epoch
        if n_left > 0 and not self.has_told_time:
            self.has_told_time = True
            left = about(n_left * row["seconds"])
            self.reporter.say(f"at most {left} for the {count(n_left, 'epoch')} left")
        # The bank is an epoch's first look: that of epoch 1 shows the head as it was drawn.
        if epoch > 1:
            self.watch(row)
        if self.write is not None:
            self.write(row)
