"""One training run of a job: its inputs, its progress and log, and how it is stopped early."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from shoal.arrays import Ints
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.named_categories import Result
from shoal.discovery.reporter import Reporter
from shoal.distributed import broadcast, is_started
from shoal.encoders.embed import ImageRows
from shoal.methods.method import Representation, TrainedSettings
from shoal.methods.registry import get_method
from shoal.methods.trunk_outputs import TrunkOutputs
from shoal.progress import Progress
from shoal.runs import Run
from shoal.settings import Plain
from shoal.training.checkpoint import is_finished
from shoal.training.loop import EarlyStopping, OnProgress, StopTraining
from shoal.training.task import Task
from shoal.training.validation import collapse_statistics, describe_collapse

# The title of the progress bar for each unit that is counted
PHASES = {"views": "preparing views", "steps": "training"}

# The title of the bar for its steps, which are slower: kernels are chosen, memory is allocated
FIRST_EPOCH = "training, first epoch"


@dataclass(frozen=True, kw_only=True)
class Training:
    """The inputs of a training run except the images, as sent to the other processes."""

    method: str
    settings: TrainedSettings
    labels: Ints
    """(N,) including those of validation images, which the loss does not see."""
    validation: Ints | None = None
    n_clusters: int | None
    folder: Path
    """The folder of its checkpoints."""
    planned: "tuple[Training, ...]" = ()
    """This training and those after it that share its pool of views."""

    def task(self, pixels: ImageRows) -> Task:
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
    early_stopping: EarlyStopping | None = None,
    after: float = 0.0,
) -> Representation | None:
    """Train in all processes; return None if it was stopped before an epoch was finished.

    `after` are seconds of the steps that follow, for messages about the remaining time.
    """
    broadcast(training, job.device)  # work for the other processes
    try:
        learned = represent(
            job, images.trunk_outputs, training, early_stopping=early_stopping, after=after
        )
    except StopTraining:
        note_stopped(job, len(Run(training.folder).metrics), training.settings)
        return None
    if not learned.is_done:
        note_stopped(job, len(learned.metrics), training.settings)
    collapse = describe_collapse(collapse_statistics(learned.embeddings))
    if collapse is not None:
        job.reporter.report(f"note: {collapse}")
    # Reuse the frozen embeddings instead of computing them again in all processes.
    return replace(learned, frozen=lambda: images.frozen.embeddings)


def represent(
    job: Job,
    trunk_outputs: TrunkOutputs,
    training: Training,
    *,
    early_stopping: EarlyStopping | None = None,
    after: float = 0.0,
) -> Representation:
    """Train in this process, on the trunk's tokens and views."""
    method = get_method(training.method)
    task = training.task(trunk_outputs.pixels)
    with _bars(job.reporter, training.settings.training.epochs, after) as progress:

        def count_views(done: int, total: int) -> None:
            progress("views", done, total)
            if not is_started() and job.stop():
                raise StopTraining

        if not method.reads_images:
            task = trunk_outputs.prepare(
                task,
                training.settings,
                [(each.task(trunk_outputs.pixels), each.settings) for each in training.planned],
                with_pool=not is_finished(training.folder),
                progress=count_views,
            )
        return method.represent(
            task,
            training.settings,
            device=job.device,
            folder=training.folder,
            resume=job.resume,
            progress=progress,
            on_epoch=partial(_report_epoch, job.reporter),
            stop=job.stop,
            early_stopping=early_stopping,
        )


def note_stopped(job: Job, n_epochs: int, settings: TrainedSettings) -> None:
    """Record in provenance.json and report that training was stopped before its end."""
    planned = settings.training.epochs
    job.run.note(stopped_early={"epochs": n_epochs, "of": planned})
    resume = "--resume"
    if job.config.max_minutes is not None:
        resume = "--resume and a larger --max-minutes"
    job.reporter.report(
        f"Stopped training after {n_epochs} of {planned} epochs. "
        f"To continue, run the same command with {resume}."
    )


def time_after_training(frozen: Result) -> float:
    """Estimate the seconds for clustering, evaluating and writing the trained result.

    Twice what writing and evaluating the frozen result took; measured were 1.5 to 2 times. How long
    its clustering took is not used: the first one on a GPU compiles kernels, which takes several
    times as long.
    """
    return 2 * (time.monotonic() - frozen.found_at)


def training_deadline(job: Job, images: EmbeddedImages, max_minutes: float | None) -> float:
    """Return when training must stop for the command to end after `max_minutes`; inf for None.

    Reserves three times what the frozen result took: the last epoch is evaluated in addition, a
    blend has more columns, and two runs are written.
    """
    if max_minutes is None:
        return float("inf")
    return job.began_at + 60 * max_minutes - 3 * (time.monotonic() - images.ready_at)


@contextmanager
def stop_request(deadline: float = float("inf")) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to stop: after Ctrl-C, or at the `deadline`.

    A second Ctrl-C interrupts. One `with` surrounds all training runs and evaluations of a job, so
    that Ctrl-C never loses a result. With several processes, or outside the main thread, Ctrl-C
    interrupts immediately.
    """
    signals: list[int] = []

    def is_requested() -> bool:
        return bool(signals) or time.monotonic() >= deadline

    if is_started() or threading.current_thread() is not threading.main_thread():
        yield is_requested
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous_handler)  # the next Ctrl-C interrupts
        signals.append(number)
        if sys.stderr is not None and sys.stderr.isatty():
            # print is not reentrant
            os.write(2, b"\nstopping with the best result so far; press Ctrl-C again to quit\n")

    previous_handler = signal.signal(signal.SIGINT, request_stop)
    try:
        yield is_requested
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def _bars(reporter: Reporter, n_epochs: int, after: float) -> Iterator[OnProgress]:
    """Yield a callback that shows a bar for views, one for the first epoch, and one for the other
    steps, whose remaining time includes the seconds `after` training."""
    shown: dict[str, Progress] = {}
    with ExitStack() as bars:

        def update(unit: str, done: int, total: int) -> None:
            phase = PHASES[unit]
            seconds = after if unit == "steps" else 0.0
            n_first = total // n_epochs
            if unit == "steps" and done <= n_first:
                phase = FIRST_EPOCH
                seconds = 0.0
                total = n_first
            if phase not in shown:
                bars.close()  # the previous bar
                shown[phase] = bars.enter_context(reporter.progress(phase, unit, seconds))
            shown[phase](done, total)

        yield update


def _report_epoch(reporter: Reporter, row: Plain) -> None:
    """Report the metrics of an epoch as a detail."""
    validation = ""
    if row["validation_accuracy"] is not None:
        accuracy = 100 * row["validation_accuracy"]
        validation = f", validation accuracy {accuracy:.1f} %, K {row['n_clusters']}"
    reporter.detail(
        f"epoch {row['epoch']}: loss {row['loss']:.4f}{validation}, {row['seconds']:.1f} s"
    )
