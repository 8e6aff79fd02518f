"""A training as `shoal discover` runs it: what it will take is said first, bars go along, Ctrl-C stops it."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from shoal.discovery.answers import Answer
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import Readable
from shoal.discovery.reporter import NOTE, Listener, Reporter
from shoal.distributed import is_started
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.errors import UsageError, missing_package
from shoal.methods.clusters import Representation
from shoal.methods.method import OnEpoch
from shoal.methods.registry import get_method, load_recipe
from shoal.methods.task import Task
from shoal.progress import Progress, about
from shoal.runs import Run
from shoal.training.bank import collapse_statistics, describe_collapse
from shoal.training.cost import Cost, measure_cost
from shoal.training.loop import GoesOn, OnProgress, StopTraining
from shoal.training.model import Model, shape_of
from shoal.training.tokens import TokenCache

MIN_EPOCHS = 3
"""Fewer epochs teach nothing."""

MIN_TRIAL_EPOCHS = 5
"""A training goes on from a trial of so many epochs; after a shorter one it begins anew."""

STOPPING = "\nstopping, with the best answer so far; Ctrl-C once more quits at once\n"


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingJob:
    """What there is before training, and who hears of it."""

    frozen: Representation
    first: Answer
    images: Readable
    run: Run
    settings: DiscoverySettings
    resume: bool
    reporter: Reporter
    tensorboard: bool
    n_tail_blocks: int | None = None
    """Those of the encoder that `frozen` comes from."""
    is_asked: Callable[[], bool] = lambda: False
    """Whether the user has asked to stop, as `ctrl_c_stops` notes it."""

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
        """How many categories training is told: the given number, or the first answer's where a method needs it."""
        if get_method(self.settings.method).needs_n_clusters:
            return self.first.discovery.n_clusters
        return self.settings.n_clusters

    def n_done(self, training: Run) -> int:
        """Epochs of a training that are there to go on from."""
        return len(training.metrics) if self.resume else 0


def check_tensorboard(settings: DiscoverySettings) -> None:
    """Refuse to write for TensorBoard where it is not installed, or where there will be no epoch to write."""
    if not settings.is_trained:
        raise UsageError(
            "tensorboard: nothing is to be trained, so there is nothing to write; leave out --tensorboard"
        )
    tensorboard_writer()


def tensorboard_writer() -> type[Any]:
    """The class that writes event files; a missing package is an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_package("tensorboard", "tensorboard", "writing TensorBoard files") from error
    return SummaryWriter


def event_writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Open an event file in `folder`; what comes back takes an epoch's row of metrics (`on_epoch` of `train`)."""
    writer = tensorboard_writer()(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch" and value is not None:
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    return write


def train_on(
    job: TrainingJob,
    task: Task,
    settings: Any,
    folder: Path,
    *,
    goes_on: GoesOn | None = None,
    start: Model | None = None,
) -> Representation | None:
    """Train on a task with bars; None where it was stopped after so few epochs that they taught nothing.

    What the trunk has computed is kept where another training follows. `goes_on` is asked after each epoch; `start` has
    the weights to begin with.
    """
    watch = _collapse_watch(job.reporter.say)
    is_last = folder == job.run.path
    task = _with_tokens(job, task, settings)
    try:
        with _bars(job) as progress:
            learned = get_method(job.settings.method).represent(
                task,
                settings,
                device=job.device,
                folder=folder,
                resume=job.resume,
                progress=progress,
                on_epoch=_epoch_listener(job.run, job.reporter, job.tensorboard and is_last, watch),
                keeps_trunk=not is_last,
                goes_on=goes_on,
                start=start,
            )
    except StopTraining:
        note_stopped(job, len(Run(folder).metrics))
        return None
    if not learned.is_done:
        note_stopped(job, len(learned.metrics))
        if len(learned.metrics) < MIN_EPOCHS:
            learned.free_trunk()
            return None
    watch(collapse_statistics(learned.embeddings))
    # What is there need not be embedded again, which processes that help would have to take part in.
    return replace(learned, frozen=lambda: job.frozen.embeddings)


def measure(job: TrainingJob, task: Task, done: Run, *, needs_pool: bool = False) -> Cost:
    """What a training on a task will take; `done` is the folder with the epochs that a resumed one has done."""
    chosen = job.settings.of_method
    data = _with_tokens(job, task, chosen).training_data
    with job.reporter.progress("timing a step of training"):
        model = (
            get_method(job.settings.method)
            .build(chosen, shape_of(data, task.n_clusters))
            .to(job.device)
        )
        return measure_cost(
            data, model, chosen.training, n_done=job.n_done(done), needs_pool=needs_pool
        )


def _with_tokens(job: TrainingJob, task: Task, settings: Any) -> Task:
    """The task with the tokens that embedding has left, where training splits the encoder as that did."""
    left = job.frozen.tokens
    if left is None or task.tokens is not None or settings.n_tail_blocks != job.n_tail_blocks:
        return task
    return replace(task, tokens=TokenCache(left.tokens, 2 * settings.training.batch_size))


def measured_gain(settings: DiscoverySettings) -> str:
    """What training has brought elsewhere, where a run trains as if nothing had been said about it; else nothing."""
    chosen = settings.of_method
    usual = load_recipe(method=settings.method)
    is_long = (chosen.training.epochs, chosen.training.lr) == (
        usual.training.epochs,
        usual.training.lr,
    )
    is_same = (chosen.encoder, chosen.input_size) == (DEFAULT_ENCODER, usual.input_size)
    is_usual = (
        is_same
        and (is_long or settings.is_short)
        and not settings.depths
        and not settings.temperatures
    )
    gain = get_method(settings.method).measured_gain if is_usual else ""
    return f"{gain}, with the recipe default" if gain and settings.is_short else gain


def announce(costs: Sequence[Cost], *, is_compared: bool, gain: str = "") -> str:
    """Say what all trainings together will take, what that may bring, and how to do without the rest of it.

    `gain` is what it has brought elsewhere.
    """
    seconds, n_steps, n_views = (
        sum(getattr(one, name) for one in costs) for name in ("seconds", "n_steps", "n_views")
    )
    end = "it may help much or not at all" + (f" ({gain})" if gain else "")
    if is_compared:
        end += ", and labels that it does not see decide which answer stands"
    return (
        f"training takes {about(seconds)} on this machine ({n_views:,} views and {n_steps:,} steps); "
        f"{end}. Ctrl-C once stops it and keeps the best answer so far, Ctrl-C twice quits and --resume goes on"
    )


@contextmanager
def ctrl_c_stops() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C do no more than answer this with True; the second one interrupts.

    It goes round all trainings and what lies between them, so that Ctrl-C costs an answer at no moment. Where there are
    several processes, or this is not the main thread, Ctrl-C does what it always does.
    """
    asked: list[int] = []
    if is_started() or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)  # the next one interrupts
        asked.append(number)
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, STOPPING.encode())  # print might already be in the middle of a line

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bars(job: TrainingJob) -> Iterator[OnProgress]:
    """Show views and then steps; training stops here where the user has asked."""
    names = {"views": "preparing views", "steps": "training"}
    shown: dict[str, Progress] = {}
    with ExitStack() as bars:

        def tell(unit: str, done: int, total: int) -> None:
            if unit not in shown:
                bars.close()  # the bar of the unit before
                shown[unit] = bars.enter_context(job.reporter.progress(names[unit], unit))
            shown[unit](done, total)
            if job.is_asked():
                raise StopTraining

        yield tell


def note_stopped(job: TrainingJob, n_epochs: int) -> None:
    """Write down that training was stopped before its end, and say so."""
    job.run.note(stopped_early={"epochs": n_epochs, "of": job.n_epochs})
    done = f"{n_epochs} of {job.n_epochs} epochs"
    job.reporter.say(
        f"training was stopped after {done}; the same command with --resume goes on with it"
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


def _epoch_listener(run: Run, reporter: Reporter, tensorboard: bool, watch: OnEpoch) -> OnEpoch:
    """Tell an epoch's metrics to whoever listens to details, the watch, and TensorBoard where it was asked for."""
    write = event_writer(run.path) if tensorboard else None

    def tell(row: dict[str, Any]) -> None:
        accuracy = row["validation_accuracy"]
        seen = (
            ""
            if accuracy is None
            else f", validation accuracy {100 * accuracy:.1f} %, K {row['n_clusters']}"
        )
        reporter.detail(
            f"epoch {row['epoch']}: loss {row['loss']:.4f}{seen}, {row['seconds']:.1f} s"
        )
        if (
            row["epoch"] > 1
        ):  # the bank is an epoch's first look: that of epoch 1 shows the head as it was drawn
            watch(row)
        if write is not None:
            write(row)

    return tell
