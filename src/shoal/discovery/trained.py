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
from shoal.discovery.broadcast import broadcast_last_training, broadcast_no_training, broadcast_training
from shoal.discovery.budget import SAID_SHORT, is_short
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.training import TrainingJob, announce, ctrl_c_stops, measure, note_stopped, train_on
from shoal.discovery.trial_judge import TrialJudge
from shoal.discovery.trials import (
    Tried,
    known_number,
    last_settings,
    last_share,
    plan_trials,
    run_trials,
    training_task,
    trial_tasks,
)
from shoal.discovery.validation import Withheld, set_aside
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.training.bank import is_collapsed
from shoal.words import count

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
    if is_short(settings):
        job.reporter.say(SAID_SHORT)
    judge = TrialJudge.of(job, withheld) if withheld.has_trial else None
    if judge is not None and not judge.frozen:
        job.reporter.say(f"{NOTE}the images that would judge training are too much alike, so the first answer stands")
        broadcast_no_training(job.device)
        return job.first, None
    if judge is not None and is_short(settings) and judge.is_satisfied:
        n = count(len(withheld.judged), "labeled image")
        job.reporter.say(f"nothing is trained: all of the {n} that would judge training are right without it")
        broadcast_no_training(job.device)
        return job.first, None
    if job.settings.max_minutes is not None:
        plan = plan_trials(job, withheld, judge)
        if not plan.depths:
            broadcast_no_training(job.device)
            return job.first, None
        depths = tuple(depth for depth in plan.depths if depth is not None)  # none: the encoder's own
        temperatures = tuple(one for one in plan.temperatures if one is not None)
        settings = replace(job.settings.with_epochs(plan.epochs), depths=depths, temperatures=temperatures)
        job = replace(job, settings=settings)
    try:
        if judge is None:
            return _answer_at_once(job, withheld)
        return _answer_by_trial(job, replace(judge, job=job))
    except TooFewDistinct as error:
        job.reporter.say(f"{NOTE}training has left nothing to cluster ({error}), so the first answer stands")
        return job.first, None


def _answer_at_once(job: TrainingJob, withheld: Withheld) -> tuple[Answer, Answer | None]:
    """Train once, without the labels of validation images, which choose the snapshot."""
    task = training_task(job.images, withheld, known_number(job))
    cost = measure(job, task, job.run)
    job.reporter.say(announce([cost], is_compared=False))
    broadcast_training(task.n_clusters, job.n_epochs, job.device)
    learned = train_on(job, task, job.settings.of_method, job.run.path, cost)
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


def _answer_by_trial(job: TrainingJob, judge: TrialJudge) -> tuple[Answer, Answer | None]:
    """Train without the labels that judge, let these choose, and train again with all labels where that helps."""
    withheld = judge.withheld
    broadcast_training(known_number(job), job.n_epochs, job.device)
    best = run_trials(job, judge)
    if best is None:
        broadcast_last_training(False, job.device)
        job.reporter.say(SAID_TOO_SHORT)
        return job.first, None
    job = best.job
    learned, was_asked = None, job.is_asked()
    goes_on = best.choice.keeps_training and best.learned.is_done
    if goes_on and not was_asked:
        learned = _train_with_all_labels(job, best, withheld)
    else:
        broadcast_last_training(False, job.device)
        if goes_on and job.run.provenance.get("stopped_early") is None:  # while the trial was judged
            job.run.note(trial_epochs=best.n_epochs)
            note_stopped(_last_job(job, best), 0)
    best.learned.free_trunk()
    if learned is not None and learned.is_done and is_collapsed(learned.embeddings):
        job.reporter.say(f"{NOTE}nothing is taken of the training with all labels: the one before it is used")
        learned = None
    is_whole = learned is not None and learned.is_done
    if not is_whole:  # training did not help, or was stopped: what is there is the end of the trial
        ended = best.ended(is_stopped=job.is_asked())
        if ended.choice.kept != best.choice.kept and not was_asked:
            job.reporter.say(ended.choice.in_words())
        best = ended
    chosen = best.choice.with_training
    if chosen.weight == 1:
        return job.first, None
    tried = _cluster_blend(job, best.learned, chosen.weight, chosen.n_shifts)
    if learned is not None and is_whole:
        return _blended(job, learned, chosen, job.run.path, withheld, tried), job.first
    answer = _blended(job, best.learned, chosen, best.folder, withheld, tried)
    return (answer, job.first) if best.choice.keeps_training else (job.first, answer)


def _train_with_all_labels(job: TrainingJob, best: Tried, withheld: Withheld) -> Representation | None:
    """Go on from the trial with the labels that were kept from it, or train anew.

    Anew where the method cannot go on, or where the trial was better before its end: then for as many epochs.
    """
    n_epochs, n_wanted = best.n_epochs, job.n_epochs
    share = _last_share(job, best)
    broadcast_last_training(True, job.device, goes_on=share < 1)
    cost = best.cost.as_measured([row["seconds"] for row in best.learned.metrics]).of_next(share, job.n_done(job.run))
    how: dict[str, Any] = {"goes_on": lambda epoch, *_: epoch < n_epochs}
    short = "" if n_epochs == n_wanted else f", for {n_epochs} of {n_wanted} epochs"
    said = f"training again, with the labels that were kept from it{short}"
    if share < 1:
        job = _last_job(job, best)
        job.run.note(trial_epochs=n_epochs)
        how = {"start": best.learned.model}
        said = f"training goes on for {count(job.n_epochs, 'epoch')}, with the labels that were kept from it"
    job.reporter.say(said)
    _, final = trial_tasks(job.images, withheld, known_number(job))
    return train_on(job, best.learned.with_trunk(final), job.settings.of_method, job.run.path, cost, **how)


def _last_share(job: TrainingJob, best: Tried) -> float:
    """Steps of the training with all labels, as a share of the trial's; less than all where it goes on from that."""
    return last_share(job.settings.method, job.n_epochs) if best.n_epochs == len(best.learned.metrics) else 1.0


def _last_job(job: TrainingJob, best: Tried) -> TrainingJob:
    """The job with the epochs of the training with all labels."""
    return replace(job, settings=last_settings(job.settings)) if _last_share(job, best) < 1 else job


def _blended(
    job: TrainingJob,
    learned: Representation,
    chosen: TriedWeight,
    trained_in: Path,
    withheld: Withheld,
    tried: Discovery,
) -> Answer:
    """The answer by the frozen and the trained embeddings at once, its confidence calibrated on the trial's."""
    found = tried
    if trained_in == job.run.path:
        found = _cluster_blend(job, learned, chosen.weight, chosen.n_shifts)
    collection = job.images.collection
    judged: dict[str, Any] = {"unseen": withheld.judged, "otherwise": job.first.named.calibration}
    answer = make_answer(TRAINED, found, collection, job.settings, calibrated_on=tried, **judged)
    first = job.first.discovery
    about = networks_of(job, learned, trained_in)
    return replace(answer, counted_on=first.embeddings, frozen_weight=chosen.weight, **about)


def _cluster_blend(job: TrainingJob, learned: Representation, weight: float, n_shifts: int | None) -> Discovery:
    """Cluster by the frozen and the trained embeddings at once; K and the linkage are those of the first answer.

    Where the number of shifts is not chosen, given labels choose it.
    """
    frozen, first = job.frozen, job.first.discovery
    both = replace(
        learned,
        embeddings=blend(frozen.embeddings, learned.embeddings, weight),
        embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
        n_shifts=n_shifts,
        linkage_method=first.linkage_method,
    )
    with job.reporter.progress(CLUSTERING):
        found = cluster(both, job.images.collection.labels, job.settings, first.n_clusters)
    return replace(found, estimate=first.estimate, counted_by=first.counted_by)


def _answer(job: TrainingJob, learned: Representation, withheld: Withheld) -> Answer:
    """The answer after a training that nothing has judged, with as much of the frozen encoder as is usually best.

    Of the trained one alone where that was asked for, where a classifier or learned attention knows one embedding, or
    where K is the paper's, counted after training.
    """
    counts_again = job.settings.n_clusters is None and not takes_first_number(job.settings)
    knows_one = learned.predicted is not None or learned.attention is not None
    judged: dict[str, Any] = {"unseen": withheld.judged, "otherwise": job.first.named.calibration}
    collection, first, about = job.images.collection, job.first.discovery, networks_of(job, learned, job.run.path)
    if job.settings.hidden_share == 0 or knows_one or counts_again:
        with job.reporter.progress(CLUSTERING):
            found = _cluster_alone(job, learned, withheld)
        answer = make_answer(TRAINED, found, collection, job.settings, **judged)
        return replace(answer, counted_on=first.embeddings if takes_first_number(job.settings) else None, **about)
    check_distinct(unit_tree(learned.embeddings), first.n_clusters)  # else the frozen encoder would hide it
    why = f"as was best on average with {DEFAULT_METHOD}, because no label can judge training"
    job.reporter.say(f"{NOTE}the encoder as it came weighs {100 * USUAL_WEIGHT:.0f} % beside the trained one, {why}")
    found = _cluster_blend(job, learned, USUAL_WEIGHT, None)
    answer = make_answer(TRAINED, found, collection, job.settings, **judged)
    return replace(answer, counted_on=first.embeddings, frozen_weight=USUAL_WEIGHT, **about)


def _cluster_alone(job: TrainingJob, learned: Representation, withheld: Withheld) -> Discovery:
    """Cluster by what was trained, with K of the first answer unless that is given or the paper's rule estimates it."""
    labels, settings, first = job.images.collection.labels, job.settings, job.first.discovery
    learned = replace(learned, linkage_method="ward")  # labels that training saw cannot say
    if takes_first_number(settings):
        found = cluster(learned, labels, settings, first.n_clusters)
        return replace(found, estimate=first.estimate, counted_by=first.counted_by)
    found = cluster(learned, labels, settings)
    if found.estimate is None and settings.n_clusters is None:
        found = _with_number_source(found, labels, withheld, settings)
    return found


def takes_first_number(settings: DiscoverySettings) -> bool:
    """Whether the number of categories after training is that of the first answer.

    Training draws together what it has labels of, so that known categories are no longer like novel ones and say too
    little about them. The paper's rule goes with the paper's images, validation, and is left alone. A method with a
    classifier has to know the number before it trains.
    """
    chosen = settings.of_method
    is_papers = chosen.inference.rule == "paper" or chosen.estimate_on == "collection"
    return settings.n_clusters is None and (get_method(settings.method).needs_n_clusters or not is_papers)


def networks_of(job: TrainingJob, learned: Representation, trained_in: Path) -> dict[str, Any]:
    """What has to be known of the networks of an answer to use them again."""
    assert learned.model is not None
    return {
        "trained_in": trained_in,
        "n_tail_blocks": job.settings.of_method.n_tail_blocks,
        "shape": learned.model.shape,
    }


def _with_number_source(found: Discovery, labels: Ints, withheld: Withheld, settings: DiscoverySettings) -> Discovery:
    """The same with where K comes from: a search of the method's own, or the validation images."""
    if own := get_method(settings.method).number(settings.of_method):
        return replace(found, counted_by=own)
    if withheld.validation is None:
        return found
    return _with_estimate(found, labels, withheld.validation, settings)


def _with_estimate(found: Discovery, labels: Ints, validation: Ints, settings: DiscoverySettings) -> Discovery:
    """The same with the curve from which training took K, for the record."""
    tree, inference = unit_tree(torch.as_tensor(found.embeddings[validation])), settings.of_method.inference
    estimate = estimate_n_clusters(tree, labels[validation], rule=inference.rule)
    return replace(found, estimate=estimate.keeping_to(inference.min_clusters, inference.max_clusters))
