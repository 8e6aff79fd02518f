"""The trained answer: the encoder's tail and a head trained on the collection, and how much of that stands.

Whether training helps is found out by a trial: a training from which some labels are kept, which then judge. What they
choose is done again with all labels, on the trunk's tokens that are there already. Where no category can be hidden
there is no trial: the encoder is trained once, and the frozen one counts beside it as much as it usually should.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.arrays import Ints
from shoal.clustering.blend import USUAL_WEIGHT, TriedWeight, blend
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.answers import TRAINED, Answer, cluster, make_answer
from shoal.discovery.discovery_settings import SHORT_RECIPE, DiscoverySettings
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.trained.training_job import TrainingJob, ctrl_c_stops
from shoal.discovery.trained.trial_judge import TrialJudge
from shoal.discovery.trained.trials import (
    broadcast_no_training,
    plan_trials,
    run_trials,
    train_once,
    train_with_all_labels,
)
from shoal.discovery.trained.withheld import Withheld, set_aside, training_tasks
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.task import Task
from shoal.training.bank import is_collapsed
from shoal.words import count

SAID_SHORT = f"the recipe {SHORT_RECIPE} trains less, as is usual without a GPU; --recipe default trains as with one"

SAID_TOO_SHORT = "that was too short to learn anything: the first answer, without training, stands"
"""What is said where training was stopped so early."""

SAID_UNJUDGED = "no label can say whether so much of a training helps: the first answer, without training, stands"
"""What is said where a training was stopped that nothing judges."""


def answer_trained(job: TrainingJob) -> tuple[Answer, Answer | None]:
    """Train, and cluster by what was learned: the answer that stands, that or the first one, and the other.

    There is no other where training has brought images together so that no cut makes as many categories, or was
    stopped after so few epochs that they taught nothing.
    """
    with ctrl_c_stops() as is_asked:
        return _train_and_answer(replace(job, is_asked=is_asked))


def _train_and_answer(job: TrainingJob) -> tuple[Answer, Answer | None]:
    """Keep labels from training, plan what fits into the time, and train with a trial or without."""
    withheld, settings = set_aside(job.images.collection, job.settings, job.reporter)
    job = replace(job, settings=settings)
    if settings.is_short:
        job.reporter.say(SAID_SHORT)
    judge = None
    if withheld.has_trial:
        with job.reporter.progress("judging the first answer"):
            judge = TrialJudge.of(job, withheld)
    if judge is not None and not judge.frozen:
        job.reporter.say(
            f"{NOTE}the images that would judge training are too much alike, so the first answer stands"
        )
        broadcast_no_training(job.device)
        return job.first, None
    if judge is not None and settings.is_short and judge.is_satisfied:
        n = count(len(withheld.judged), "labeled image")
        job.reporter.say(
            f"nothing is trained: all of the {n} that would judge training are right without it"
        )
        broadcast_no_training(job.device)
        return job.first, None
    task, last_task = training_tasks(job.images, withheld, job.n_clusters)
    if settings.max_minutes is not None:
        planned = plan_trials(job, judge, task)
        if planned is None:
            broadcast_no_training(job.device)
            return job.first, None
        job = replace(job, settings=planned)
    try:
        if judge is None or last_task is None:
            return _answer_at_once(job, task, withheld)
        return _answer_by_trial(job, task, last_task, replace(judge, job=job))
    except TooFewDistinct as error:
        job.reporter.say(
            f"{NOTE}training has left nothing to cluster ({error}), so the first answer stands"
        )
        return job.first, None


def _answer_at_once(
    job: TrainingJob, task: Task, withheld: Withheld
) -> tuple[Answer, Answer | None]:
    """Train once, without the labels of validation images, which choose the snapshot."""
    learned = train_once(job, task)
    if learned is None:
        job.reporter.say(SAID_TOO_SHORT)
        return job.first, None
    if job.settings.hidden_share > 0 and is_collapsed(learned.embeddings):
        job.reporter.say(f"{NOTE}nothing is taken of that training: the first answer stands")
        return job.first, None
    answer = _answer(job, learned, withheld)
    if job.settings.hidden_share > 0 and not learned.is_done:
        job.reporter.say(SAID_UNJUDGED)
        return job.first, answer
    return answer, job.first


def _answer_by_trial(
    job: TrainingJob, task: Task, last_task: Task, judge: TrialJudge
) -> tuple[Answer, Answer | None]:
    """Train without the labels that judge, let these choose, and train again with all labels where that helps."""
    withheld = judge.withheld
    best = run_trials(job, judge, task)
    if best is None:
        job.reporter.say(SAID_TOO_SHORT)
        return job.first, None
    learned, best = train_with_all_labels(best, last_task)
    job = best.job
    chosen = best.choice.with_training
    if chosen.weight == 1:
        return job.first, None
    tried = _cluster_blend(job, best.learned, chosen.weight, chosen.n_shifts)
    if learned is not None:
        return _blended(job, learned, chosen, job.run.path, withheld, tried), job.first
    answer = _blended(job, best.learned, chosen, best.folder, withheld, tried)
    return (answer, job.first) if best.choice.keeps_training else (job.first, answer)


def _blended(
    job: TrainingJob,
    learned: Representation,
    chosen: TriedWeight,
    trained_in: Path,
    withheld: Withheld,
    tried: Discovery,
) -> Answer:
    """The answer by the frozen and the trained embeddings at once, its confidence calibrated on the trial's."""
    discovery = tried
    if trained_in == job.run.path:
        discovery = _cluster_blend(job, learned, chosen.weight, chosen.n_shifts)
    collection = job.images.collection
    judged: dict[str, Any] = {
        "unseen": withheld.judged,
        "otherwise": job.first.named.calibration,
        "frozen": job.frozen.embeddings.cpu(),
    }
    answer = make_answer(
        TRAINED, discovery, collection, job.settings, calibrated_on=tried, **judged
    )
    about = networks_of(job, learned, trained_in)
    return replace(answer, frozen_weight=chosen.weight, **about)


def _cluster_blend(
    job: TrainingJob, learned: Representation, weight: float, n_shifts: int | None
) -> Discovery:
    """Cluster by the frozen and the trained embeddings at once; K and the linkage are those of the first answer.

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


def _answer(job: TrainingJob, learned: Representation, withheld: Withheld) -> Answer:
    """The answer after a training that nothing has judged, with as much of the frozen encoder as is usually best.

    Of the trained one alone where that was asked for, where a classifier or learned attention knows one embedding, or
    where K is the paper's, counted after training.
    """
    counts_again = job.settings.n_clusters is None and not takes_first_number(job.settings)
    knows_one = learned.predicted is not None or learned.attention is not None
    judged: dict[str, Any] = {
        "unseen": withheld.judged,
        "otherwise": job.first.named.calibration,
        "frozen": job.frozen.embeddings.cpu(),
    }
    collection = job.images.collection
    first = job.first.discovery
    about = networks_of(job, learned, job.run.path)
    if job.settings.hidden_share == 0 or knows_one or counts_again:
        with job.reporter.progress(CLUSTERING):
            discovery = _cluster_alone(job, learned, withheld)
        answer = make_answer(TRAINED, discovery, collection, job.settings, **judged)
        return replace(answer, **about)
    check_distinct(
        unit_tree(learned.embeddings), first.n_clusters
    )  # else the frozen encoder would hide it
    why = f"as was best on average with {DEFAULT_METHOD}, because no label can judge training"
    job.reporter.say(
        f"{NOTE}the encoder as it came weighs {100 * USUAL_WEIGHT:.0f} % beside the trained one, {why}"
    )
    discovery = _cluster_blend(job, learned, USUAL_WEIGHT, None)
    answer = make_answer(TRAINED, discovery, collection, job.settings, **judged)
    return replace(answer, frozen_weight=USUAL_WEIGHT, **about)


def _cluster_alone(job: TrainingJob, learned: Representation, withheld: Withheld) -> Discovery:
    """Cluster by what was trained, with K of the first answer unless that is given or the paper's rule estimates it."""
    labels = job.images.collection.labels
    settings = job.settings
    first = job.first.discovery
    learned = replace(learned, linkage_method="ward")  # labels that training saw cannot say
    if takes_first_number(settings):
        discovery = cluster(learned, labels, settings, first.n_clusters)
        return replace(discovery, estimate=first.estimate, counted_by=first.counted_by)
    discovery = cluster(learned, labels, settings)
    if discovery.estimate is None and settings.n_clusters is None:
        discovery = _with_number_source(discovery, labels, withheld, settings)
    return discovery


def takes_first_number(settings: DiscoverySettings) -> bool:
    """Whether the number of categories after training is that of the first answer.

    Training draws together what it has labels of, so that known categories are no longer like novel ones and say too
    little about them. The paper's rule goes with the paper's images, validation, and is left alone. A method with a
    classifier has to know the number before it trains.
    """
    chosen = settings.of_method
    is_papers = chosen.inference.rule == "paper" or chosen.estimate_on == "collection"
    return settings.n_clusters is None and (
        get_method(settings.method).needs_n_clusters or not is_papers
    )


def networks_of(job: TrainingJob, learned: Representation, trained_in: Path) -> dict[str, Any]:
    """What has to be known of the networks of an answer to use them again."""
    assert learned.model is not None
    return {
        "trained_in": trained_in,
        "n_tail_blocks": job.settings.of_method.n_tail_blocks,
        "shape": learned.model.shape,
    }


def _with_number_source(
    discovery: Discovery, labels: Ints, withheld: Withheld, settings: DiscoverySettings
) -> Discovery:
    """The same with where K comes from: a search of the method's own, or the validation images."""
    if own := get_method(settings.method).number(settings.of_method):
        return replace(discovery, counted_by=own)
    if withheld.validation is None:
        return discovery
    return _with_estimate(discovery, labels, withheld.validation, settings)


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
