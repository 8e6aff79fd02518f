"""The trained result: the encoder's tail and a head trained on the collection, and whether it is
kept.

Training is evaluated on held-out labels in a trial. What they choose is done again with all labels,
on the trunk's tokens that are there already. Where no category can be hidden there is no trial: the
encoder is trained once, if the user asks for it, and the frozen embeddings have the usual weight
beside the trained ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from shoal.arrays import Ints
from shoal.clustering.blend import USUAL_WEIGHT, blend
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.answers import TRAINED, Answer, cluster, make_answer
from shoal.discovery.discovery_settings import SHORT_RECIPE, DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.evaluation import Evaluation, TrialStopping
from shoal.discovery.trained.held_out import (
    MIN_CATEGORIES,
    HeldOut,
    describe_held_out,
    fit_batch,
    hold_out,
)
from shoal.discovery.trained.training import Training, note_stopped, stop_request, train
from shoal.distributed import is_started
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.method import TrainedSettings
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.trunk import split_of
from shoal.runs import Run
from shoal.training.collapse import is_collapsed
from shoal.training.model import Model
from shoal.words import count, listed, percent

DEEP = 5
"""Blocks of the default encoder that are trained in a second trial on a GPU."""

LAST_SHARE = 0.4
"""Epochs of the training with all labels, as a share of a trial's, where it goes on from the trial.
Held-out labels cannot tell it from a whole training that begins anew
(benchmarks/results/2026-11-17_h200_short_trainings.md)."""

SAID_SHORT = (
    f"the recipe {SHORT_RECIPE} trains less, as is usual without a GPU; "
    "--recipe default trains as with one"
)

KEEPING_FROZEN = "Keeping the frozen result."

Answers = tuple[Answer, Answer | None]
"""The result that is kept, and the other."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """A training without the held-out labels, and what these say of its best epoch."""

    training: Training
    learned: Representation
    choice: Choice

    @property
    def n_right(self) -> int:
        """How many held-out images are right with the weight that is kept."""
        return int(self.choice.chosen.right.sum())

    @property
    def accuracy(self) -> float:
        """Held-out accuracy with the weight that is kept."""
        return self.n_right / self.choice.n_images


def answer_trained(job: Job, images: EmbeddedImages, first: Answer) -> Answers:
    """Train, and cluster by what was learned: the result that is kept, that or the frozen one, and
    the other.

    There is no other where nothing was trained, or training has brought images together so that no
    cut makes as many categories.
    """
    collection = images.collection
    held_out = hold_out(collection, job.settings)
    for line in describe_held_out(collection, held_out):
        job.reporter.say(line)
    settings = fit_batch(job.settings, len(collection), job.reporter)
    job = replace(job, settings=settings)
    evaluation = None
    # Learned attention fits one embedding alone, which cannot be blended with another to compare
    # them.
    if held_out.hidden and settings.shift.aggregation != "attention":
        evaluation = Evaluation(
            frozen=images.frozen,
            labels=collection.labels,
            classes=collection.classes,
            held_out=held_out,
            first=first.discovery,
            settings=settings,
        )
    if evaluation is None:
        reason = reason_not_to_train(settings, None)
    else:
        with job.reporter.progress("evaluating the frozen result"):
            reason = reason_not_to_train(settings, evaluation)
    if reason:
        job.reporter.say(f"Training is not started: {reason}. {KEEPING_FROZEN}")
        return first, None
    if settings.recipe == SHORT_RECIPE:
        job.reporter.say(SAID_SHORT)
    n_clusters = settings.n_clusters
    if get_method(settings.method).needs_n_clusters:
        n_clusters = first.discovery.n_clusters
    training = Training(
        method=settings.method,
        settings=settings.trained,
        labels=held_out.labels,
        validation=held_out.validation,
        n_clusters=n_clusters,
        folder=job.run.path,
    )
    with stop_request(settings.max_minutes) as stop:
        job = replace(job, stop=stop)
        try:
            if evaluation is None:
                return _train_once(job, images, first, training, held_out)
            return _train_by_trial(job, images, first, training, evaluation)
        except TooFewDistinct as error:
            job.reporter.say(
                f"{NOTE}training has left nothing to cluster ({error}). {KEEPING_FROZEN}"
            )
            return first, None


def reason_not_to_train(settings: DiscoverySettings, evaluation: Evaluation | None) -> str:
    """Why training cannot be shown to help, so that it is not started unless asked for; nothing
    where it can.

    `evaluation` is None where no category can be held out.
    """
    if evaluation is not None and not evaluation.of_frozen:
        return "the held-out images are too much alike to evaluate it"
    if settings.train is True or settings.hidden_share == 0:
        return ""
    anyway = "; --train starts it anyway"
    if evaluation is None:
        few = f"fewer than {MIN_CATEGORIES} known categories have two labeled images or more"
        return f"{few}, so that none can be held out to evaluate it{anyway}"
    if not evaluation.can_be_significant:
        right = evaluation.of_frozen[-1].right
        n_right = f"{int(right.sum()):,} of {count(len(right), 'held-out label')}"
        return f"{n_right} are right without it, so no result could be significantly better{anyway}"
    return ""


def _train_once(
    job: Job, images: EmbeddedImages, first: Answer, training: Training, held_out: HeldOut
) -> Answers:
    """Train without a trial; the labels of validation images, which the loss does not see, choose
    the snapshot."""
    job.reporter.say(_announcement(training.settings))
    learned = train(job, images, training)
    is_asked_for = job.settings.hidden_share == 0
    if learned is None or (not is_asked_for and is_collapsed(learned.embeddings)):
        job.reporter.say(KEEPING_FROZEN)
        return first, None
    knows_one = learned.predicted is not None or job.settings.shift.aggregation == "attention"
    estimates_again = job.settings.n_clusters is None and not takes_first_number(job.settings)
    if is_asked_for or knows_one or estimates_again:
        weight = 0.0
        with job.reporter.progress(CLUSTERING):
            discovery = _cluster_alone(job, images, first, learned, held_out)
    else:
        weight = USUAL_WEIGHT
        # Else the frozen encoder would hide it.
        check_distinct(unit_tree(learned.embeddings), first.discovery.n_clusters)
        job.reporter.say(
            f"{NOTE}the frozen embeddings have a weight of {100 * USUAL_WEIGHT:.0f} %, as was best "
            f"on average with {DEFAULT_METHOD}, because no label is held out to choose it"
        )
        discovery = _cluster_blend(job, images, first, learned, weight)
    answer = _answer(job, images, first, discovery, held_out)
    answer = with_networks(answer, training, learned, weight)
    if not is_asked_for and not learned.is_done:
        job.reporter.say(f"No label is held out to evaluate a stopped training. {KEEPING_FROZEN}")
        return first, answer
    return answer, first


def _train_by_trial(
    job: Job, images: EmbeddedImages, first: Answer, training: Training, evaluation: Evaluation
) -> Answers:
    """Train without the held-out labels, let these choose, and train again with all labels where
    that helps."""
    trial = run_trials(job, images, training, evaluation)
    if trial is None:
        job.reporter.say(KEEPING_FROZEN)
        return first, None
    last = _train_with_all_labels(job, images, trial)
    images.trunk.free()
    chosen = trial.choice.trained
    if chosen.weight == 1:
        return first, None
    # Confidence is calibrated on the trial, whose held-out labels training has not seen.
    tried = _cluster_blend(job, images, first, trial.learned, chosen.weight, chosen.n_shifts)
    discovery = tried
    networks = (trial.training, trial.learned)
    if last is not None:
        networks = last
        discovery = _cluster_blend(job, images, first, last[1], chosen.weight, chosen.n_shifts)
    answer = _answer(job, images, first, discovery, evaluation.held_out, calibrated_on=tried)
    answer = with_networks(answer, *networks, chosen.weight)
    if trial.choice.kept == TRAINED:
        return answer, first
    return first, answer


def run_trials(
    job: Job, images: EmbeddedImages, training: Training, evaluation: Evaluation
) -> Trial | None:
    """Run a trial for each depth; the one with most held-out images right, the first of equals.

    None follows one in which all are right, or that was stopped. None where no epoch was finished.
    """
    depths = depths_to_try(job.settings, job.device)
    job.reporter.say(_announcement(training.settings, depths))
    trials: list[Trial] = []
    for depth in depths:
        trial = _run_trial(job, images, _trial_training(job, images, training, depth), evaluation)
        if trial is None:
            break
        trials.append(trial)
        if not trial.learned.is_done or trial.n_right == trial.choice.n_images:
            break
    if not trials:
        return None
    best = max(trials, key=lambda trial: trial.n_right)
    tried = []
    shown = []
    for trial in trials:
        depth = trial.training.settings.n_tail_blocks
        if trial is not best:
            images.trunk.drop(split_of(trial.training.settings))
        tried.append({"n_tail_blocks": depth, "accuracy": trial.accuracy})
        shown.append(f"{_blocks(depth)} ({percent(trial.accuracy)})")
    noted = {"epochs": best.learned.epoch, "trials": tried}
    job.run.write_json("choice", best.choice.to_dict() | noted)
    if len(trials) > 1:
        used = _blocks(best.training.settings.n_tail_blocks)
        job.reporter.say(f"held-out accuracy with {listed(shown)}; using {used}")
    job.reporter.say(best.choice.in_words())
    return best


def depths_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[int | None, ...]:
    """How many blocks are trained, one trial each: those asked for, else the recipe's and, on a
    GPU, more."""
    usual = settings.n_tail_blocks
    depths: tuple[int | None, ...] = settings.depths or (usual,)
    is_default = settings.of_method.encoder == DEFAULT_ENCODER and device.type == "cuda"
    if not settings.depths and is_default and usual is not None and usual < DEEP:
        depths = (usual, DEEP)
    if is_started():
        return depths[:1]  # every process would have to make the views of each depth
    return depths


def _trial_training(
    job: Job, images: EmbeddedImages, training: Training, depth: int | None
) -> Training:
    """The trial of a depth, which shares its views with the training with all labels that may
    follow."""
    settings = replace(training.settings, n_tail_blocks=depth)
    # Held-out labels choose the snapshot, not validation accuracy.
    settings = replace(settings, training=replace(settings.training, snapshot="last"))
    trial = replace(training, settings=settings, folder=job.run.path / f"trial-{depth}")
    last = replace(trial, labels=images.collection.labels, validation=None)
    return replace(trial, planned=(trial, last))


def _run_trial(
    job: Job, images: EmbeddedImages, training: Training, evaluation: Evaluation
) -> Trial | None:
    stopping = TrialStopping(
        evaluation=evaluation,
        trial=Run(training.folder),
        n_epochs=training.settings.training.epochs,
        say=job.reporter.say,
    )
    learned = train(job, images, training, early_stopping=stopping)
    if learned is None:
        return None
    return Trial(training=training, learned=learned, choice=evaluation.choose(learned))


def _train_with_all_labels(
    job: Job, images: EmbeddedImages, trial: Trial
) -> tuple[Training, Representation] | None:
    """Train again after a trial, with the labels that were held out from it.

    None where the trial did not help, or the last training was stopped or has collapsed: the result
    is the trial's.
    """
    if trial.choice.kept != TRAINED or not trial.learned.is_done:
        return None
    job.run.note(trial_epochs=len(trial.learned.metrics))
    training, start = _last_training(job, trial)
    if job.stop():  # the user has stopped it while the trial was evaluated
        note_stopped(job, training, 0)
        return None
    epochs = count(training.settings.training.epochs, "epoch")
    job.reporter.say(f"training continues for {epochs}, with all labels")
    learned = train(job, images, training, start=start)
    if learned is None or not learned.is_done:
        return None
    if is_collapsed(learned.embeddings):
        job.reporter.say(
            f"{NOTE}the training with all labels has collapsed: using the one before it"
        )
        return None
    return training, learned


def _last_training(job: Job, trial: Trial) -> tuple[Training, Model[Any] | None]:
    """The training with all labels, and the model to go on from; a method that cannot begins anew.

    Anew for as many epochs as were best in the trial.
    """
    before = trial.training.settings.training
    if get_method(trial.training.method).goes_on_from_trial:
        epochs = max(1, round(LAST_SHARE * before.epochs))
        start = trial.learned.model
    else:
        epochs = trial.learned.epoch
        start = None
    snapshot = job.settings.trained.training.snapshot
    settings = replace(
        trial.training.settings, training=replace(before, epochs=epochs, snapshot=snapshot)
    )
    training = replace(
        trial.training.planned[1],
        settings=settings,
        folder=job.run.path,
        goes_on=start is not None,
        planned=trial.training.planned,
    )
    return training, start


def _announcement(settings: TrainedSettings, depths: Sequence[int | None] = ()) -> str:
    """Say what will be trained, and how to end it early."""
    epochs = f"up to {count(settings.training.epochs, 'epoch')}"
    if len(depths) > 1:
        epochs += f" for each of {listed([_blocks(depth) for depth in depths])}"
    return (
        f"training {epochs}; Ctrl-C once stops it and keeps the best result so far, "
        "Ctrl-C twice quits, and --resume continues after either"
    )


def _blocks(depth: int | None) -> str:
    return "the encoder's own tail" if depth is None else count(depth, "trained block")


def _answer(
    job: Job,
    images: EmbeddedImages,
    first: Answer,
    discovery: Discovery,
    held_out: HeldOut,
    calibrated_on: Discovery | None = None,
) -> Answer:
    return make_answer(
        TRAINED,
        discovery,
        images.collection,
        job.settings,
        unseen=held_out.rows,
        calibrated_on=calibrated_on,
        otherwise=first.named.calibration,
        frozen=images.frozen.embeddings.cpu(),
    )


def with_networks(
    answer: Answer, training: Training, learned: Representation, frozen_weight: float = 0.0
) -> Answer:
    """The result with what has to be known of its networks to use them again."""
    assert learned.model is not None
    return replace(
        answer,
        trained_in=training.folder,
        n_tail_blocks=training.settings.n_tail_blocks,
        shape=learned.model.shape,
        frozen_weight=frozen_weight,
    )


def _cluster_blend(
    job: Job,
    images: EmbeddedImages,
    first: Answer,
    learned: Representation,
    weight: float,
    n_shifts: int | None = None,
) -> Discovery:
    """Cluster by frozen and trained embeddings at once; K and the linkage are those of the first
    result.

    Where the number of shifts is not chosen, given labels choose it.
    """
    frozen = images.frozen
    both = replace(
        learned,
        embeddings=blend(frozen.embeddings, learned.embeddings, weight),
        embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
        n_shifts=n_shifts,
        linkage_method=first.discovery.linkage_method,
    )
    with job.reporter.progress(CLUSTERING):
        return _with_first_number(job, images, first, both)


def _with_first_number(
    job: Job, images: EmbeddedImages, first: Answer, learned: Representation
) -> Discovery:
    """Cluster with K of the first result, and how that came about."""
    before = first.discovery
    discovery = cluster(learned, images.collection.labels, job.settings, before.n_clusters)
    return replace(discovery, estimate=before.estimate, counted_by=before.counted_by)


def _cluster_alone(
    job: Job, images: EmbeddedImages, first: Answer, learned: Representation, held_out: HeldOut
) -> Discovery:
    """Cluster by what was trained, with K of the first result unless that is given or the paper's
    rule estimates it."""
    labels = images.collection.labels
    settings = job.settings
    learned = replace(learned, linkage_method="ward")  # labels that training saw cannot say
    if takes_first_number(settings):
        return _with_first_number(job, images, first, learned)
    discovery = cluster(learned, labels, settings)
    is_estimated_here = discovery.estimate is not None or discovery.counted_by
    if is_estimated_here or settings.n_clusters is not None or held_out.validation is None:
        return discovery
    return _with_estimate(discovery, labels, held_out.validation, settings)


def takes_first_number(settings: DiscoverySettings) -> bool:
    """Whether the number of categories after training is that of the first result.

    Training draws together what it has labels of, so that known categories are no longer like novel
    ones and say too little about them. The paper's rule goes with the paper's images, validation,
    and is left alone. A method with a classifier has to know the number before it trains.
    """
    if settings.n_clusters is not None:
        return False
    chosen = settings.trained
    is_papers = chosen.inference.rule == "paper" or chosen.estimate_on == "collection"
    return get_method(settings.method).needs_n_clusters or not is_papers


def _with_estimate(
    discovery: Discovery, labels: Ints, validation: Ints, settings: DiscoverySettings
) -> Discovery:
    """The same with the curve from which training took K, for the record."""
    tree = unit_tree(torch.as_tensor(discovery.embeddings[validation]))
    inference = settings.of_method.inference
    estimate = estimate_n_clusters(tree, labels[validation], rule=inference.rule)
    return replace(
        discovery, estimate=estimate.keeping_to(inference.min_clusters, inference.max_clusters)
    )
