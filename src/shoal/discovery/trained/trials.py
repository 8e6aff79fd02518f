"""The trials of a run: which depth of the tail and which temperature of the loss are best for this collection.

Each is a training from which some labels are kept, which then judge it. First one depth after the other; then, at the
best depth and on its views, which are there already, the other temperatures.

Several processes train together: what the main one says of it, and what the others do when they hear it, comes last.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import decode
from shoal.discovery.reporter import NOTE, SILENT
from shoal.discovery.trained.budget import TrainingPlan, describe_plan, plan_training, read_plan
from shoal.discovery.trained.choice import Tried, best_of, keep_best
from shoal.discovery.trained.training_job import (
    MIN_TRIAL_EPOCHS,
    TrainingJob,
    announce,
    measure,
    measured_gain,
    note_stopped,
    train_on,
)
from shoal.discovery.trained.trial_judge import TrialJudge
from shoal.discovery.trained.withheld import set_aside, training_tasks
from shoal.distributed import flag_from_main, is_started, number_from_main
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.methods.clusters import Representation
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.training.bank import is_collapsed
from shoal.training.cost import Cost
from shoal.words import count

DEEP = 5
"""Blocks of the default encoder that are trained in a second trial, where there is time for it."""

TEMPERATURE_FACTOR = 2.0
"""So many times the recipe's temperature is tried after that, within the minutes that the user gives."""

LAST_SHARE = 0.4
"""Epochs of the training with all labels, as a share of a trial's, where it goes on from the trial. Kept labels cannot
tell it from a whole training that begins anew (benchmarks/results/2026-11-17_h200_short_trainings.md)."""


def depths_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[int | None, ...]:
    """How many blocks are trained, one trial each: those asked for; else the recipe's and, where there is time, more.

    Several processes try the first of them alone.
    """
    usual = settings.of_method.n_tail_blocks
    more = (DEEP,) if usual is not None and usual < DEEP and _has_time(settings, device) else ()
    depths = settings.depths or (usual, *more)
    return depths[:1] if is_started() else depths


def temperatures_to_try(
    settings: DiscoverySettings, device: torch.device
) -> tuple[float | None, ...]:
    """Temperatures of the contrastive loss, chosen as depths are: the first for these, the others at the best depth."""
    usual = settings.temperature
    more = (
        ()
        if usual is None or settings.max_minutes is None or not _has_time(settings, device)
        else (TEMPERATURE_FACTOR * usual,)
    )
    temperatures: tuple[float | None, ...] = settings.temperatures or (usual, *more)
    return temperatures[:1] if is_started() else temperatures


def _has_time(settings: DiscoverySettings, device: torch.device) -> bool:
    """Whether more than one training is tried: on a GPU, or within the minutes that the user gives."""
    return settings.of_method.encoder == DEFAULT_ENCODER and (
        device.type == "cuda" or settings.max_minutes is not None
    )


def first_trial(settings: DiscoverySettings, device: torch.device) -> DiscoverySettings:
    """The settings of the first trial, the only one of several processes."""
    depth = depths_to_try(settings, device)[0]
    temperature = temperatures_to_try(settings, device)[0]
    return settings.at_depth(depth).at_temperature(temperature)


def trial_settings(settings: DiscoverySettings) -> Any:
    """The method's settings for the trial: its last snapshot is judged, as the one with all labels keeps its last."""
    chosen = settings.of_method
    return replace(chosen, training=replace(chosen.training, snapshot="last"))


def trial_folder(run: Run, settings: DiscoverySettings) -> Path:
    """Where the trial of a depth and a temperature is trained."""
    temperature = "" if settings.temperature is None else f"-{settings.temperature:g}"
    return run.path / f"trial-{settings.of_method.n_tail_blocks}{temperature}"


def last_share(method: str, n_epochs: int) -> float:
    """Steps that the training with all labels takes, as a share of those of a trial of so many epochs."""
    return (
        LAST_SHARE
        if get_method(method).goes_on_from_trial and n_epochs >= MIN_TRIAL_EPOCHS
        else 1.0
    )


def last_settings(settings: DiscoverySettings) -> DiscoverySettings:
    """The settings of a training with all labels that goes on from the trial."""
    return settings.with_epochs(max(1, round(LAST_SHARE * settings.of_method.training.epochs)))


def plan_trials(job: TrainingJob, judge: TrialJudge | None, task: Task) -> DiscoverySettings | None:
    """The settings with what is trained within the minutes that the user gives; None where nothing is.

    Without a judge there is no trial, but one training.
    """
    plan = (
        read_plan(job.run)
        if job.resume and job.run.has("plan.json")
        else _make_plan(job, judge, task)
    )
    if not plan.depths:
        return None
    depths = tuple(depth for depth in plan.depths if depth is not None)  # none: the encoder's own
    temperatures = tuple(one for one in plan.temperatures if one is not None)
    return replace(job.settings.with_epochs(plan.epochs), depths=depths, temperatures=temperatures)


def _make_plan(job: TrainingJob, judge: TrialJudge | None, task: Task) -> TrainingPlan:
    settings = job.settings
    first = first_trial(job.settings, job.device)
    depths = depths_to_try(settings, job.device)
    temperatures = temperatures_to_try(settings, job.device)
    if judge is None:
        first = settings
        depths = (settings.of_method.n_tail_blocks,)
        temperatures = (settings.temperature,)
    fresh = replace(job, resume=False)
    costs = {
        depth: _measure(replace(fresh, settings=first.at_depth(depth)), task, job.run, judge)
        for depth in depths
    }
    assert settings.max_minutes is not None
    share = partial(last_share, settings.method) if judge is not None else lambda _: 0.0
    plan = plan_training(costs, temperatures, 60 * settings.max_minutes, last_share=share)
    job.run.write_json("plan", plan.to_dict())
    job.reporter.say(
        describe_plan(plan, settings.max_minutes, job.n_epochs, len(depths), len(temperatures))
    )
    return plan


def train_once(job: TrainingJob, task: Task) -> Representation | None:
    """Train without a trial; None where it was stopped after so few epochs that they taught nothing."""
    cost = measure(job, task, job.run)
    job.reporter.say(announce([cost], is_compared=False))
    broadcast_training(task.n_clusters, job.n_epochs, job.device)
    return train_on(job, task, job.settings.of_method, job.run.path)


def run_trials(job: TrainingJob, judge: TrialJudge, task: Task) -> Tried | None:
    """Try depths, then temperatures: the trial with most of the judging images right, the first of equals.

    None is tried after one that puts all of them right. None where the first was stopped before an epoch was finished.
    """
    broadcast_training(job.n_clusters, job.n_epochs, job.device)
    depths = depths_to_try(job.settings, job.device)
    temperatures = temperatures_to_try(job.settings, job.device)[1:]
    first = first_trial(job.settings, job.device)
    jobs = [replace(job, settings=first.at_depth(depth)) for depth in depths]
    costs = [
        _measure(
            one,
            task,
            Run(trial_folder(one.run, one.settings)),
            judge,
            needs_pool=at == len(jobs) - 1,
        )
        for at, one in enumerate(jobs)
    ]
    all_costs = [
        *costs,
        *(replace(costs[-1], n_views=0) for _ in temperatures),
        _last_cost(job, costs[-1]),
    ]
    job.reporter.say(announce(all_costs, is_compared=True, gain=measured_gain(job.settings)))
    tried: list[Tried] = []
    for one, cost in zip(jobs, costs, strict=True):
        if not _add(tried, one, task, judge, cost) or tried[-1].is_full:
            break
    else:
        best = best_of(tried)
        seen = best.learned.with_trunk(task)
        for temperature in temperatures:
            one = replace(best.job, settings=best.job.settings.at_temperature(temperature))
            cost = replace(best.cost, n_views=0).as_measured(
                [row["seconds"] for row in best.learned.metrics]
            )
            if (
                best.choice.is_hopeless
                or not _add(tried, one, seen, judge, cost)
                or tried[-1].is_full
            ):
                break
    if not tried:
        broadcast_last_training(False, job.device)
        return None
    return keep_best(job, tried)


def _add(tried: list[Tried], job: TrainingJob, task: Task, judge: TrialJudge, cost: Cost) -> bool:
    """Run one more trial; False where it was stopped."""
    folder = trial_folder(job.run, job.settings)
    learned = train_on(
        job, task, trial_settings(job.settings), folder, goes_on=judge.watch(Run(folder))
    )
    if learned is None:
        return False
    tried.append(
        Tried(
            job=job, folder=folder, cost=cost, learned=learned, **judge.at_end(learned, Run(folder))
        )
    )
    return learned.is_done


def _measure(
    job: TrainingJob, task: Task, done: Run, judge: TrialJudge | None, *, needs_pool: bool = False
) -> Cost:
    """What a training will take, with its judging where it is a trial."""
    cost = measure(job, task, done, needs_pool=needs_pool)
    return cost if judge is None else replace(cost, judging_s=judge.trial_s(job.n_epochs))


def _last_cost(job: TrainingJob, cost: Cost) -> Cost:
    """What the training with all labels will take after a trial of that cost."""
    return cost.of_next(last_share(job.settings.method, job.n_epochs), job.n_done(job.run))


def train_with_all_labels(best: Tried, task: Task) -> tuple[Representation | None, Tried]:
    """Train again after the best trial, with the labels that were kept from it; returns that and the trial.

    Where the trial did not help, or the last training was stopped or has collapsed, there is none: what is there is the
    end of the trial, and the trial says what that is worth.
    """
    job = best.job
    learned = None
    was_asked = best.job.is_asked()
    goes_on = best.choice.keeps_training and best.learned.is_done
    if goes_on and not was_asked:
        learned = _train_last(best, task)
    else:
        broadcast_last_training(False, job.device)
        if (
            goes_on and job.run.provenance.get("stopped_early") is None
        ):  # while the trial was judged
            job.run.note(trial_epochs=len(best.learned.metrics))
            note_stopped(_last_job(best), 0)
    best.learned.free_trunk()
    if learned is not None and learned.is_done and is_collapsed(learned.embeddings):
        job.reporter.say(
            f"{NOTE}nothing is taken of the training with all labels: the one before it is used"
        )
        learned = None
    if learned is not None and learned.is_done:
        return learned, best
    ended = best.ended(is_stopped=job.is_asked())
    if ended.choice.kept != best.choice.kept and not was_asked:
        job.reporter.say(ended.choice.in_words())
    return None, ended


def _train_last(best: Tried, task: Task) -> Representation | None:
    """Go on from the trial or, where the method cannot or the trial was better before its end, train anew.

    Anew for as many epochs as were best.
    """
    job = best.job
    n_epochs = best.n_epochs
    n_wanted = best.job.n_epochs
    share = _last_share(best)
    broadcast_last_training(True, job.device, goes_on=share < 1)
    how: dict[str, Any] = {"goes_on": lambda epoch, *_: epoch < n_epochs}
    short = "" if n_epochs == n_wanted else f", for {n_epochs} of {n_wanted} epochs"
    said = f"training again, with the labels that were kept from it{short}"
    job.run.note(trial_epochs=len(best.learned.metrics))
    if share < 1:
        job = _last_job(best)
        how = {"start": best.learned.model}
        said = f"training goes on for {count(job.n_epochs, 'epoch')}, with the labels that were kept from it"
    job.reporter.say(said)
    return train_on(job, best.learned.with_trunk(task), job.settings.of_method, job.run.path, **how)


def _last_share(best: Tried) -> float:
    """Steps of the training with all labels, as a share of the trial's; less than all where it goes on from that."""
    job = best.job
    return (
        last_share(job.settings.method, job.n_epochs)
        if best.n_epochs == len(best.learned.metrics)
        else 1.0
    )


def _last_job(best: Tried) -> TrainingJob:
    """The job with the epochs of the training with all labels."""
    job = best.job
    return replace(job, settings=last_settings(job.settings)) if _last_share(best) < 1 else job


def broadcast_training(n_clusters: int | None, n_epochs: int, device: torch.device) -> None:
    """Say that training begins: the number of clusters that it is told, and its epochs."""
    flag_from_main(True, device)
    number_from_main(n_clusters, device)
    number_from_main(n_epochs, device)


def broadcast_no_training(device: torch.device) -> None:
    """Say that nothing is trained."""
    flag_from_main(False, device)


def broadcast_last_training(
    is_wanted: bool, device: torch.device, *, goes_on: bool = False
) -> None:
    """Say whether the trial is followed by a training with all labels, and whether that goes on from the trial."""
    flag_from_main(is_wanted, device)
    flag_from_main(goes_on, device)


def share_training(
    collection: Collection,
    run: Run,
    settings: DiscoverySettings,
    device: torch.device,
    resume: bool,
) -> None:
    """Train what the main process trains, when it has said that it begins; nothing where it says so."""
    if not flag_from_main(False, device):
        return
    images = decode(collection, settings, SILENT)
    withheld, settings = set_aside(images.collection, settings, SILENT)
    method = get_method(settings.method)
    how: dict[str, Any] = {"device": device, "resume": resume}
    n_clusters = number_from_main(None, device)
    n_epochs = number_from_main(None, device)
    settings = settings.with_epochs(n_epochs) if n_epochs is not None else settings
    task, last_task = training_tasks(images, withheld, n_clusters)
    if last_task is None:
        method.represent(task, settings.of_method, folder=run.path, **how)
        return
    settings = first_trial(settings, device)
    folder = trial_folder(run, settings)
    tried = method.represent(task, trial_settings(settings), folder=folder, keeps_trunk=True, **how)
    is_wanted = flag_from_main(False, device)
    goes_on = flag_from_main(False, device)
    if is_wanted:
        last = last_settings(settings) if goes_on else settings
        how["start"] = tried.model if goes_on else None
        method.represent(tried.with_trunk(last_task), last.of_method, folder=run.path, **how)
    tried.free_trunk()
