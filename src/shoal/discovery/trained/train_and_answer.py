"""The trained result: the encoder's tail and a head trained on the collection, and whether it is kept.

Training is evaluated on held-out labels in a trial. What they choose is done again with all labels, on the trunk's
tokens that are there already. Where no category can be hidden there is no trial: the encoder is trained once, if the
user asks for it, and the frozen embeddings have the usual weight beside the trained ones.
"""

from dataclasses import replace
from pathlib import Path

import torch

from shoal.arrays import Ints
from shoal.clustering.blend import USUAL_WEIGHT, blend
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.answers import TRAINED, Answer, cluster, make_answer
from shoal.discovery.discovery_settings import SHORT_RECIPE, DiscoverySettings
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.trained.evaluation import Evaluation
from shoal.discovery.trained.held_out import MIN_CATEGORIES, HeldOut, set_aside, training_tasks
from shoal.discovery.trained.last_training import train_with_all_labels, trained_in
from shoal.discovery.trained.training_job import TrainingJob, stop_request, train_on
from shoal.discovery.trained.trials import (
    announce,
    broadcast_no_training,
    broadcast_training,
    run_trials,
)
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.task import Task
from shoal.training.collapse import is_collapsed
from shoal.words import count

SAID_SHORT = (
    f"the recipe {SHORT_RECIPE} trains less, as is usual without a GPU; "
    "--recipe default trains as with one"
)

KEEPING_FROZEN = "Keeping the frozen result."


def answer_trained(job: TrainingJob) -> tuple[Answer, Answer | None]:
    """Train, and cluster by what was learned: the result that is kept, that or the frozen one, and the other.

    There is no other where nothing was trained, or training has brought images together so that no cut makes as many
    categories.
    """
    held_out, settings = set_aside(job.images.collection, job.settings, job.reporter)
    job = replace(job, settings=settings)
    evaluation = None
    if held_out.has_trial:
        with job.reporter.progress("evaluating the frozen result"):
            evaluation = Evaluation.of(job, held_out)
            reason = reason_not_to_train(settings, evaluation)
    else:
        reason = reason_not_to_train(settings, None)
    if reason:
        job.reporter.say(f"Training is not started: {reason}. {KEEPING_FROZEN}")
        broadcast_no_training(job.device)
        return job.first, None
    if settings.recipe == SHORT_RECIPE:
        job.reporter.say(SAID_SHORT)
    task, last_task = training_tasks(job.images, held_out, job.n_clusters)
    broadcast_training(task.n_clusters, job.device)
    with stop_request(settings.max_minutes) as stop:
        job = replace(job, stop=stop)
        try:
            if evaluation is None or last_task is None:
                return _train_once(job, task, held_out)
            return _train_by_trial(job, task, last_task, evaluation)
        except TooFewDistinct as error:
            job.reporter.say(
                f"{NOTE}training has left nothing to cluster ({error}). {KEEPING_FROZEN}"
            )
            return job.first, None


def reason_not_to_train(settings: DiscoverySettings, evaluation: Evaluation | None) -> str:
    """Why training cannot be shown to help, so that it is not started unless asked for; nothing where it can.

    `evaluation` is None where no category can be held out.
    """
    is_asked = settings.train is True or settings.hidden_share == 0
    anyway = "; --train starts it anyway"
    if evaluation is not None and not evaluation.of_frozen:
        return "the held-out images are too much alike to evaluate it"
    if is_asked:
        return ""
    if evaluation is None:
        few = f"fewer than {MIN_CATEGORIES} known categories have two labeled images or more"
        return f"{few}, so that none can be held out to evaluate it{anyway}"
    if not evaluation.can_be_significant:
        right = evaluation.of_frozen[-1].right
        n_right = f"{int(right.sum()):,} of {count(len(right), 'held-out label')}"
        return f"{n_right} are right without it, so no result could be significantly better{anyway}"
    return ""


def _train_once(job: TrainingJob, task: Task, held_out: HeldOut) -> tuple[Answer, Answer | None]:
    """Train without a trial; the labels of validation images, which the loss does not see, choose the snapshot."""
    job.reporter.say(announce(job))
    learned = train_on(job, task, job.settings.of_method, job.run.path)
    if learned is None:
        job.reporter.say(KEEPING_FROZEN)
        return job.first, None
    is_asked_for = job.settings.hidden_share == 0
    if not is_asked_for and is_collapsed(learned.embeddings):
        job.reporter.say(KEEPING_FROZEN)
        return job.first, None
    answer = _answer(job, learned, held_out)
    if not is_asked_for and not learned.is_done:
        job.reporter.say(f"No label is held out to evaluate a stopped training. {KEEPING_FROZEN}")
        return job.first, answer
    return answer, job.first


def _train_by_trial(
    job: TrainingJob, task: Task, last_task: Task, evaluation: Evaluation
) -> tuple[Answer, Answer | None]:
    """Train without the held-out labels, let these choose, and train again with all labels where that helps."""
    trial = run_trials(job, evaluation, task)
    if trial is None:
        broadcast_no_training(job.device)  # with all labels
        job.reporter.say(KEEPING_FROZEN)
        return job.first, None
    last = train_with_all_labels(trial, last_task)
    trial.learned.free_trunk()
    chosen = trial.choice.trained
    if chosen.weight == 1:
        return job.first, None
    # Confidence is calibrated on the trial, whose held-out labels training has not seen.
    tried = _cluster_blend(trial.job, trial.learned, chosen.weight, chosen.n_shifts)
    discovery = tried
    learned = trial.learned
    if last is not None:
        learned = last
        discovery = _cluster_blend(trial.job, last, chosen.weight, chosen.n_shifts)
    answer = make_answer(
        TRAINED,
        discovery,
        job.images.collection,
        job.settings,
        calibrated_on=tried,
        unseen=evaluation.held_out.rows,
        otherwise=job.first.named.calibration,
        frozen=job.frozen.embeddings.cpu(),
    )
    answer = replace(
        answer,
        frozen_weight=chosen.weight,
    )
    answer = with_networks(answer, trial.job, learned, trained_in(trial, last))
    if trial.choice.kept == TRAINED:
        return answer, job.first
    return job.first, answer


def _cluster_blend(
    job: TrainingJob, learned: Representation, weight: float, n_shifts: int | None
) -> Discovery:
    """Cluster by frozen and trained embeddings at once; K and the linkage are those of the first result.

    Where the number of shifts is not chosen, given labels choose it.
    """
    frozen = job.frozen
    first = job.first.discovery
    both = replace(
        learned,
        embeddings=blend(frozen.embeddings, learned.embeddings, weight),
        embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
        n_shifts=n_shifts,
        linkage_method=first.linkage_method,
    )
    with job.reporter.progress(CLUSTERING):
        discovery = cluster(both, job.images.collection.labels, job.settings, first.n_clusters)
    return replace(discovery, estimate=first.estimate, counted_by=first.counted_by)


def _answer(job: TrainingJob, learned: Representation, held_out: HeldOut) -> Answer:
    """The result of a training that nothing has evaluated, with the usual weight of the frozen embeddings.

    Of the trained ones alone where that was asked for, where a classifier or learned attention knows one embedding, or
    where K is the paper's, estimated after training.
    """
    settings = job.settings
    first = job.first.discovery
    takes_first = takes_first_number(settings)
    estimates_again = settings.n_clusters is None and not takes_first
    knows_one = learned.predicted is not None or settings.shift.aggregation == "attention"
    is_alone = settings.hidden_share == 0 or knows_one or estimates_again
    if is_alone:
        with job.reporter.progress(CLUSTERING):
            discovery = _cluster_alone(job, learned, held_out)
    else:
        # Else the frozen encoder would hide it.
        check_distinct(unit_tree(learned.embeddings), first.n_clusters)
        job.reporter.say(
            f"{NOTE}the frozen embeddings have a weight of {100 * USUAL_WEIGHT:.0f} %, as was best on "
            f"average with {DEFAULT_METHOD}, because no label is held out to choose it"
        )
        discovery = _cluster_blend(job, learned, USUAL_WEIGHT, None)
    answer = make_answer(
        TRAINED,
        discovery,
        job.images.collection,
        settings,
        unseen=held_out.rows,
        otherwise=job.first.named.calibration,
        frozen=job.frozen.embeddings.cpu(),
    )
    answer = replace(
        answer,
        frozen_weight=0.0 if is_alone else USUAL_WEIGHT,
    )
    return with_networks(answer, job, learned, job.run.path)


def _cluster_alone(job: TrainingJob, learned: Representation, held_out: HeldOut) -> Discovery:
    """Cluster by what was trained, with K of the first result unless that is given or the paper's rule estimates it."""
    labels = job.images.collection.labels
    settings = job.settings
    first = job.first.discovery
    learned = replace(learned, linkage_method="ward")  # labels that training saw cannot say
    if takes_first_number(settings):
        discovery = cluster(learned, labels, settings, first.n_clusters)
        return replace(discovery, estimate=first.estimate, counted_by=first.counted_by)
    discovery = cluster(learned, labels, settings)
    is_estimated_here = discovery.estimate is not None or discovery.counted_by
    if is_estimated_here or settings.n_clusters is not None or held_out.validation is None:
        return discovery
    return _with_estimate(discovery, labels, held_out.validation, settings)


def takes_first_number(settings: DiscoverySettings) -> bool:
    """Whether the number of categories after training is that of the first result.

    Training draws together what it has labels of, so that known categories are no longer like novel ones and say too
    little about them. The paper's rule goes with the paper's images, validation, and is left alone. A method with a
    classifier has to know the number before it trains.
    """
    chosen = settings.of_method
    if settings.n_clusters is not None:
        return False
    is_papers = chosen.inference.rule == "paper" or chosen.estimate_on == "collection"
    return get_method(settings.method).needs_n_clusters or not is_papers


def with_networks(
    answer: Answer, job: TrainingJob, learned: Representation, folder: Path
) -> Answer:
    """The result with what has to be known of its networks, trained in `folder`, to use them again."""
    assert learned.model is not None
    return replace(
        answer,
        trained_in=folder,
        n_tail_blocks=job.settings.of_method.n_tail_blocks,
        shape=learned.model.shape,
    )


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
