"""One training of a job: what it learns from, who hears of it, and how it is stopped with the best
result so far."""

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

from shoal.arrays import Ints
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import NOTE, Reporter
from shoal.distributed import flag_from_main, is_main, is_started, object_from_main
from shoal.encoders.embed import ImageRows
from shoal.errors import UsageError, missing_package
from shoal.methods.clusters import Representation
from shoal.methods.method import TrainedSettings
from shoal.methods.registry import get_method
from shoal.methods.trunk import Trunk
from shoal.progress import Progress, about
from shoal.runs import Run
from shoal.training.checkpoint import is_finished
from shoal.training.collapse import collapse_statistics, describe_collapse
from shoal.training.loop import EarlyStopping, OnEpoch, OnProgress, StopTraining
from shoal.training.model import Model
from shoal.training.task import Task
from shoal.words import count

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

STOPPING = "\nstopping, with the best result so far; Ctrl-C once more quits at once\n"

PHASES = {"views": "preparing views", "steps": "training"}
"""What is done while views, and then steps, are counted."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """A training as the main process tells the others of it: all but the images."""

    method: str
    settings: TrainedSettings
    labels: Ints
    """(N,) those of validation images included, which the loss never sees."""
    validation: Ints | None = None
    n_clusters: int | None
    folder: Path
    """Where it leaves its checkpoints."""
    goes_on: bool = False
    """Whether it begins with the weights of the training before it."""
    planned: "tuple[Training, ...]" = ()
    """The trainings that share its views, where there are others."""

    def task(self, pixels: ImageRows) -> Task:
        """What the method is given."""
        return Task(
            pixels=pixels,
            labels=self.labels,
            validation=self.validation,
            n_clusters=self.n_clusters,
        )


def train(
    job: Job,
    images: EmbeddedImages,
    training: Training,
    *,
    start: Model[Any] | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Representation | None:
    """Train, with progress, in all processes; None where it was stopped before an epoch was
    finished.

    `start` has the weights to begin with.
    """
    flag_from_main(True, job.device)
    object_from_main(training, job.device)
    try:
        learned = represent(job, images.trunk, training, start=start, early_stopping=early_stopping)
    except StopTraining:
        note_stopped(job, training, len(Run(training.folder).metrics))
        return None
    if not learned.is_done:
        note_stopped(job, training, len(learned.metrics))
    collapse = describe_collapse(collapse_statistics(learned.embeddings))
    if collapse is not None:
        job.reporter.say(NOTE + collapse)
    # What is there need not be embedded again, which processes that help would have to take part
    # in.
    return replace(learned, frozen=lambda: images.frozen.embeddings)


def represent(
    job: Job,
    trunk: Trunk,
    training: Training,
    *,
    start: Model[Any] | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Representation:
    """Train in this process, on what the trunk has computed."""
    method = get_method(training.method)
    task = training.task(trunk.pixels)
    with _bars(job.reporter) as progress:

        def count_views(done: int, total: int) -> None:
            progress("views", done, total)
            if not is_started() and job.stop():
                raise StopTraining

        if not method.reads_images:
            task = trunk.prepare(
                task,
                training.settings,
                [(one.task(trunk.pixels), one.settings) for one in training.planned],
                with_pool=not is_finished(training.folder),
                progress=count_views,
            )
        return method.represent(
            task,
            training.settings,
            device=job.device,
            start=start,
            folder=training.folder,
            resume=job.resume,
            progress=progress,
            on_epoch=_epoch_listener(job, training),
            stop=job.stop,
            early_stopping=early_stopping,
        )


def note_stopped(job: Job, training: Training, n_epochs: int) -> None:
    """Write down that training was stopped before its end, and say so."""
    of = training.settings.training.epochs
    job.run.note(stopped_early={"epochs": n_epochs, "of": of})
    job.reporter.say(
        f"training was stopped after {n_epochs} of {of} epochs; "
        "the same command with --resume continues it"
    )


@contextmanager
def stop_request(max_minutes: float | None = None) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether to stop: after the first Ctrl-C, or when the minutes are
    over.

    The second Ctrl-C interrupts. It goes round all trainings and what lies between them, so that
    Ctrl-C costs a result at no moment. Where there are several processes, or this is not the main
    thread, Ctrl-C does what it always does.
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


def _epoch_listener(job: Job, training: Training) -> OnEpoch | None:
    """Tells the metrics of an epoch to whoever listens to details, to TensorBoard, and once how
    long it will take."""
    if not is_main():
        return None
    writer = None
    if job.tensorboard and training.folder == job.run.path:
        writer = tensorboard_writer()(str(training.folder))
    n_epochs = training.settings.training.epochs
    has_told_time = False

    def listen(row: dict[str, Any]) -> None:
        nonlocal has_told_time
        epoch = row["epoch"]
        seen = ""
        if row["validation_accuracy"] is not None:
            accuracy = 100 * row["validation_accuracy"]
            seen = f", validation accuracy {accuracy:.1f} %, K {row['n_clusters']}"
        job.reporter.detail(f"epoch {epoch}: loss {row['loss']:.4f}{seen}, {row['seconds']:.1f} s")
        n_left = n_epochs - epoch
        if n_left > 0 and not has_told_time:
            has_told_time = True
            left = about(n_left * row["seconds"])
            job.reporter.say(f"at most {left} for the {count(n_left, 'epoch')} left")
        if writer is not None:
            for name, value in row.items():
                if name != "epoch" and value is not None:
                    writer.add_scalar(name, value, epoch)
            writer.flush()

    return listen


def check_tensorboard(settings: DiscoverySettings) -> None:
    """Refuse to write for TensorBoard where it is not installed, or where there will be no epoch to
    write."""
    if not settings.is_trained:
        raise UsageError(
            "tensorboard: nothing is to be trained, so there is nothing to write; leave out "
            "--tensorboard"
        )
    tensorboard_writer()


def tensorboard_writer() -> "type[SummaryWriter]":
    """The class that writes event files; a missing package is an error that says how to install
    it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_package("tensorboard", "writing TensorBoard files") from error
    return SummaryWriter
