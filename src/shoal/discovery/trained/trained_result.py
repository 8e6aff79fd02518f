"""The trained result: train the encoder's tail and a head, and compare with the frozen result.

The encoder is trained without the held-out labels, which then choose between the frozen and the
trained result. With too few known categories to hold any out, it is trained only if the user asks
for it. `Training` holds the inputs of one training run; `shoal compare` has several.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.mean_shift import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.discovery_settings import CPU_RECIPE, DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, Reporter
from shoal.discovery.results import TRAINED, Result, cluster, name_categories
from shoal.discovery.trained.evaluation import (
    FROZEN_WEIGHT,
    MIN_CATEGORIES,
    Evaluation,
    HeldOut,
    blend,
    describe_held_out,
    fit_batch,
    hold_out,
    is_significant,
)
from shoal.distributed import broadcast, is_started
from shoal.encoders.vision import ImageRows
from shoal.errors import TooFewDistinct, count
from shoal.methods.method import Discovery, Representation, TrainedSettings, TrunkOutputs
from shoal.methods.registry import get_method
from shoal.progress import Progress
from shoal.runs import Run
from shoal.settings import Plain
from shoal.training.inputs import Task
from shoal.training.loop import EarlyStopping, OnProgress, StopTraining, is_finished
from shoal.training.validation import collapse_statistics, describe_collapse, is_collapsed

# The title of the progress bar for each unit that is counted
PHASES = {"views": "preparing views", "steps": "training"}

# The title of the bar for its steps, which are slower: kernels are chosen, memory is allocated
FIRST_EPOCH = "training, first epoch"

KEEPING_FROZEN = "Keeping the frozen result."


@dataclass(frozen=True, kw_only=True)
class Training:
    """The inputs of a training run except the images, as sent to the other processes."""

    method: str
    settings: TrainedSettings
    labels: Ints  # (N,) including those of validation images, which the loss does not see
    validation: Ints | None = None
    n_clusters: int | None
    # The folder of its checkpoints
    folder: Path
    # This training and those after it that share its pool of views
    planned: "tuple[Training, ...]" = ()

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

    Twice what writing and evaluating the frozen result took; measured were 1.5 to 2.7 times. How
    long its clustering took is not used: the first one on a GPU compiles kernels, which takes
    several times as long.
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


def train_and_choose(
    job: Job, images: EmbeddedImages, frozen: Result
) -> tuple[Result, Result | None]:
    """Train, cluster, and return the result to use and the other one.

    The other result is None if nothing was trained, or if the trained embeddings have collapsed or
    have too few distinct rows for the number of categories.
    """
    # Not even the held-out labels are evaluated if no time is left for training.
    if time.monotonic() >= training_deadline(job, images, job.settings.max_minutes):
        note_stopped(job, len(job.run.metrics), job.settings.trained)
        job.reporter.report(KEEPING_FROZEN)
        return frozen, None
    collection = images.collection
    held_out = hold_out(collection, job.settings)
    for line in describe_held_out(collection, held_out):
        job.reporter.report(line)
    settings = fit_batch(job.settings, len(collection), job.reporter)
    evaluation = None
    # Learned attention applies only to the embeddings it was trained with, so it cannot cluster a
    # blend.
    if held_out.hidden and settings.shift.aggregation != "attention":
        evaluation = Evaluation(
            job=replace(job, settings=settings),
            images=images,
            held_out=held_out,
            frozen_discovery=frozen.discovery,
        )
        with job.reporter.progress("evaluating the frozen result"):
            _ = evaluation.frozen  # computed once and cached
    reason = reason_not_to_train(settings, evaluation)
    if reason:
        job.reporter.report(f"Skipping training: {reason}. {KEEPING_FROZEN}")
        return frozen, None
    if settings.recipe == CPU_RECIPE:
        job.reporter.report(
            f"using the recipe {CPU_RECIPE}, a shorter schedule for machines without a GPU; "
            "--recipe gpu trains as on a GPU"
        )
    n_clusters = settings.n_clusters
    if get_method(settings.method).needs_n_clusters:
        n_clusters = frozen.discovery.n_clusters
    chosen = settings.trained
    if evaluation is not None:
        # The evaluation chooses the snapshot; the validation accuracy does not.
        chosen = replace(chosen, training=replace(chosen.training, snapshot="last"))
    training = Training(
        method=settings.method,
        settings=chosen,
        labels=held_out.labels,
        validation=held_out.validation,
        n_clusters=n_clusters,
        folder=job.run.path,
    )
    with stop_request(training_deadline(job, images, settings.max_minutes)) as stop:
        job = replace(job, settings=settings, stop=stop)
        epochs = count(chosen.training.epochs, "epoch")
        job.reporter.report(
            f"Training for up to {epochs}. Ctrl-C stops and keeps the best result so far; a second "
            "Ctrl-C quits. --resume continues after either."
        )
        try:
            after = time_after_training(frozen)
            learned = train(job, images, training, early_stopping=evaluation, after=after)
            images.trunk_outputs.free()
            if learned is None:
                job.reporter.report(KEEPING_FROZEN)
                return frozen, None
            return _choose(job, images, frozen, held_out, training, learned, evaluation)
        except TooFewDistinct as error:
            job.reporter.report(
                f"note: the trained embeddings cannot be clustered ({error}). {KEEPING_FROZEN}"
            )
            return frozen, None


def reason_not_to_train(settings: DiscoverySettings, evaluation: Evaluation | None) -> str:
    """Return why training is skipped: held-out labels could not show that it helps; else ''.

    `evaluation` is None if no category can be held out, or with learned attention.
    """
    if evaluation is not None and evaluation.frozen is None:
        return "the embeddings of the held-out images are too similar to evaluate it"
    if settings.train is True or settings.hidden_share == 0:
        return ""
    remedy = "; give --train to train anyway"
    if evaluation is None:
        cause = f"fewer than {MIN_CATEGORIES} known categories have two or more labeled images"
        if settings.shift.aggregation == "attention":
            cause = "the method learns attention"
        return f"{cause}, so no category can be held out to evaluate it{remedy}"
    assert evaluation.frozen is not None
    is_correct = evaluation.frozen.is_correct
    if not is_significant(np.ones_like(is_correct), is_correct):
        correct = f"{int(is_correct.sum()):,} of {count(len(is_correct), 'held-out image')}"
        return (
            f"{correct} are assigned correctly without it, so no result could be significantly "
            f"better{remedy}"
        )
    return ""


def _choose(
    job: Job,
    images: EmbeddedImages,
    frozen: Result,
    held_out: HeldOut,
    training: Training,
    learned: Representation,
    evaluation: Evaluation | None,
) -> tuple[Result, Result | None]:
    """Cluster the trained embeddings; held-out labels choose between the results.

    Without held-out categories the trained result is used if training is done.
    """
    is_requested = job.settings.hidden_share == 0  # by --protocol or --set
    is_used = is_requested or learned.is_done
    weight = 0.0
    # Learned attention applies only to the embeddings it was trained with, so it cannot cluster a
    # blend.
    has_blend = learned.predicted is None and job.settings.shift.aggregation != "attention"
    if not is_requested and has_blend:
        weight = FROZEN_WEIGHT
    n_shifts = None
    if evaluation is not None:
        choice = evaluation.compare(learned.embeddings, learned.predicted)
        job.run.write_json("choice", choice.to_dict() | {"epochs": learned.epoch})
        job.reporter.report(choice.in_words())
        if choice.trained is None:
            return frozen, None
        is_used = choice.is_significant
        n_shifts = choice.trained.n_shifts
    elif not is_requested:
        # Check before blending: blended with frozen embeddings, collapsed ones look distinct.
        if is_collapsed(learned.embeddings):
            job.reporter.report(KEEPING_FROZEN)
            return frozen, None
        check_distinct(unit_tree(learned.embeddings), frozen.discovery.n_clusters)
        if not learned.is_done:
            job.reporter.report(
                f"No labels are held out to evaluate unfinished training. {KEEPING_FROZEN}"
            )
    with job.reporter.progress(CLUSTERING):
        if is_requested:
            discovery = _cluster_alone(job, images, frozen.discovery, learned, held_out.validation)
        else:
            discovery = _cluster_blend(job, images, frozen.discovery, learned, weight, n_shifts)
    result = name_categories(
        discovery,
        images.collection,
        job.settings.shift.n_neighbors,
        name=TRAINED,
        held_out=held_out.rows,
        fallback=frozen.calibration,
        frozen=images.frozen.embeddings.cpu(),
    )
    result = with_networks(result, training, learned, weight)
    if is_used:
        return result, frozen
    return frozen, result


def _cluster_blend(
    job: Job,
    images: EmbeddedImages,
    first: Discovery,
    learned: Representation,
    weight: float,
    n_shifts: int | None,
) -> Discovery:
    """Cluster a blend of frozen and trained embeddings, with the frozen result's K and linkage.

    If `n_shifts` is None, labels choose the number of shifts.
    """
    frozen = images.frozen
    embeddings = blend(frozen.embeddings, learned.embeddings, weight)
    both = replace(
        learned,
        n_frozen=embeddings.shape[1] - learned.embeddings.shape[1],
        embeddings=embeddings,
        embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
        n_shifts=n_shifts,
        linkage_method=first.linkage_method,
    )
    return _cluster_with_k_of(first, job, images, both)


def _cluster_alone(
    job: Job,
    images: EmbeddedImages,
    first: Discovery,
    learned: Representation,
    validation: Ints | None,
) -> Discovery:
    """Cluster the trained embeddings alone, as the CMS paper does.

    K is that of the frozen result: training pulls the labeled images of a category together, so
    known categories no longer resemble novel ones and are a poor basis for an estimate. Only
    the CMS paper's rule estimates K on the trained embeddings of the validation images, except for
    a method with a classifier, which needs K before training.
    """
    settings = job.settings
    labels = images.collection.labels
    # Labels cannot choose the linkage: training has seen them.
    learned = replace(learned, linkage_method="ward")
    inference = settings.method_settings.inference
    needs_n_clusters = get_method(settings.method).needs_n_clusters
    if settings.n_clusters is None and (needs_n_clusters or inference.rule != "paper"):
        return _cluster_with_k_of(first, job, images, learned)
    discovery = cluster(learned, labels, settings)
    has_source = discovery.estimate is not None or discovery.n_clusters_source
    if has_source or settings.n_clusters is not None or validation is None:
        return discovery
    # K was estimated on the validation images during training; repeat the estimate for
    # estimate.json.
    tree = unit_tree(torch.as_tensor(discovery.embeddings[validation]))
    estimate = estimate_n_clusters(tree, labels[validation], rule=inference.rule)
    clipped = estimate.clipped_to(inference.min_clusters, inference.max_clusters)
    return replace(discovery, estimate=clipped)


def _cluster_with_k_of(
    first: Discovery, job: Job, images: EmbeddedImages, learned: Representation
) -> Discovery:
    """Cluster with the number of categories and the estimate of the frozen result."""
    labels = images.collection.labels
    discovery = cluster(learned, labels, job.settings, first.n_clusters)
    return replace(discovery, estimate=first.estimate, n_clusters_source=first.n_clusters_source)


def with_networks(
    result: Result, training: Training, learned: Representation, frozen_weight: float = 0.0
) -> Result:
    """Return the result with what is needed to load its networks later."""
    assert learned.model is not None
    model: Plain = {
        "n_tail_blocks": training.settings.n_tail_blocks,
        "frozen_weight": frozen_weight,
        "shape": asdict(learned.model.shape),
    }
    if result.discovery.predicted is not None:
        model["classifier"] = _classifier_categories(result, result.discovery.predicted)
    return replace(result, trained_in=training.folder, model=model)


def _classifier_categories(result: Result, predicted: Ints) -> list[int]:
    """Return, for each output of the classifier, the category id of most images that `predicted`
    (N,) assigns to it; -1 if there are none."""
    is_free = result.labels == UNLABELED
    # A label may override a prediction, so labeled images count only if there are no others.
    counts = is_free | ~np.isin(predicted, predicted[is_free])
    both = np.stack([predicted, result.categories])[:, counts]
    pairs, sizes = np.unique(both, axis=1, return_counts=True)
    pairs = pairs[:, np.argsort(sizes, kind="stable")]  # the largest of an output comes last
    categories = np.full(int(predicted.max()) + 1, UNLABELED)
    categories[pairs[0]] = np.asarray(result.ids)[pairs[1]]
    return categories.tolist()
