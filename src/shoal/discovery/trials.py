"""The trials of a run: which depth of the tail and which temperature of the loss are best for this collection.

Each is a training from which some labels are kept, which then judge it. First one depth after the other; then, at the
best depth and on its views, which are there already, the other temperatures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoal.discovery.budget import TrainingPlan, describe_plan, is_usual, plan_training, read_plan
from shoal.discovery.choice import Choice
from shoal.discovery.readable import Readable
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.training import TrainingJob, announce, measure, train_on
from shoal.discovery.trial_judge import TrialJudge
from shoal.discovery.validation import Withheld
from shoal.distributed import is_started
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.methods.clusters import Representation
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.training.cost import Cost
from shoal.words import count, part_of

DEEP = 5
"""Blocks of the default encoder that are trained in a second trial, where there is time for it."""

TEMPERATURE_FACTOR = 2.0
"""So many times the recipe's temperature is tried after that, within the minutes that the user gives."""

LAST_SHARE = 0.4
"""Epochs of the training with all labels, as a share of a trial's, where it goes on from the trial. Kept labels cannot
tell it from a whole training that begins anew (benchmarks/results/2026-11-17_h200_short_trainings.md)."""

MIN_TRIAL_EPOCHS = 5
"""A training goes on from a trial of so many epochs; after a shorter one it begins anew."""


def depths_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[int | None, ...]:
    """How many blocks are trained, one trial each: those asked for; else the recipe's and, where there is time, more.

    Several processes try the first of them alone.
    """
    usual = settings.of_method.n_tail_blocks
    more = (DEEP,) if usual is not None and usual < DEEP and _has_time(settings, device) else ()
    depths = settings.depths or (usual, *more)
    return depths[:1] if is_started() else depths


def temperatures_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[float | None, ...]:
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
    return settings.of_method.encoder == DEFAULT_ENCODER and (device.type == "cuda" or settings.max_minutes is not None)


def first_trial(settings: DiscoverySettings, device: torch.device) -> DiscoverySettings:
    """The settings of the first trial, the only one of several processes."""
    depth, temperature = depths_to_try(settings, device)[0], temperatures_to_try(settings, device)[0]
    return settings.at_depth(depth).at_temperature(temperature)


def training_task(images: Readable, withheld: Withheld, n_clusters: int | None) -> Task:
    """What training learns from, without the labels that it does not see."""
    return Task(
        pixels=images.pixels,
        labels=withheld.labels,
        validation=withheld.validation,
        n_clusters=n_clusters,
    )


def trial_tasks(images: Readable, withheld: Withheld, n_clusters: int | None) -> tuple[Task, Task]:
    """What the trial learns from, and the training after it, with all labels; they look at one pool of views."""
    labels = images.collection.labels
    trial = training_task(images, withheld, n_clusters)
    final = replace(trial, labels=labels, validation=None, pool_labels=(trial.training_data.training_labels,))
    return replace(trial, pool_labels=(labels,)), final


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
    return LAST_SHARE if get_method(method).goes_on_from_trial and n_epochs >= MIN_TRIAL_EPOCHS else 1.0


def last_settings(settings: DiscoverySettings) -> DiscoverySettings:
    """The settings of a training with all labels that goes on from the trial."""
    return settings.with_epochs(max(1, round(LAST_SHARE * settings.of_method.training.epochs)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Tried:
    """A trial, and what the labels kept from it say."""

    job: TrainingJob
    """With the depth and the temperature that were tried."""
    folder: Path
    cost: Cost
    learned: Representation
    choice: Choice
    n_epochs: int
    """After how many epochs that was said."""
    at_end: Choice
    """What they say of its last epoch, whose weights are there."""

    @property
    def accuracy(self) -> float:
        """Share of the judging images that are right with the weight that is kept."""
        return float(self.choice.chosen.right.mean())

    def in_words(self) -> str:
        """What was tried: '5 blocks at temperature 0.2'."""
        settings = self.job.settings
        blocks, temperature = settings.of_method.n_tail_blocks, settings.temperature
        depth = "the encoder's own blocks" if blocks is None else count(blocks, "block")
        return depth if temperature is None else f"{depth} at temperature {temperature:g}"

    def to_dict(self) -> dict[str, Any]:
        """For choice.json."""
        settings = self.job.settings
        what = {"n_tail_blocks": settings.of_method.n_tail_blocks, "temperature": settings.temperature}
        return what | {"accuracy": self.accuracy}

    def ended(self, *, is_stopped: bool) -> "Tried":
        """The same with what is said of its last epoch, which choice.json then holds too.

        `is_stopped`: the user has stopped it, or the training that was to go on from it.
        """
        if self.choice is self.at_end and self.choice.is_stopped == is_stopped:
            return self
        choice = replace(self.at_end, is_stopped=is_stopped)
        found = replace(self, choice=choice, n_epochs=len(self.learned.metrics))
        run = self.job.run
        run.write_json("choice", run.json("choice") | found.choice.to_dict() | {"epochs": found.n_epochs})
        return found


def plan_trials(job: TrainingJob, withheld: Withheld, judge: TrialJudge | None) -> TrainingPlan:
    """What is trained within the minutes that the user gives."""
    if job.resume and job.run.has("plan.json"):
        return read_plan(job.run)
    settings = job.settings
    first, n_clusters = first_trial(settings, job.device), known_number(job)
    depths, temperatures = depths_to_try(settings, job.device), temperatures_to_try(settings, job.device)
    task = trial_tasks(job.images, withheld, n_clusters)[0]
    if judge is None:
        first, depths, temperatures = settings, (settings.of_method.n_tail_blocks,), (settings.temperature,)
        task = training_task(job.images, withheld, n_clusters)
    fresh = replace(job, resume=False)
    costs = {depth: _measure(replace(fresh, settings=first.at_depth(depth)), task, job.run, judge) for depth in depths}
    assert settings.max_minutes is not None
    share = partial(last_share, settings.method) if judge is not None else lambda _: 0.0
    plan = plan_training(costs, temperatures, 60 * settings.max_minutes, last_share=share)
    job.run.write_json("plan", plan.to_dict())
    job.reporter.say(describe_plan(plan, settings.max_minutes, job.n_epochs, len(depths), len(temperatures)))
    return plan


def run_trials(job: TrainingJob, judge: TrialJudge) -> Tried | None:
    """Try depths, then temperatures: the trial with most of the judging images right, the first of equals.

    None where the first was stopped before an epoch was finished.
    """
    depths, temperatures = depths_to_try(job.settings, job.device), temperatures_to_try(job.settings, job.device)[1:]
    first, n_clusters = first_trial(job.settings, job.device), known_number(job)
    jobs = [replace(job, settings=first.at_depth(depth)) for depth in depths]
    task = trial_tasks(job.images, judge.withheld, n_clusters)[0]
    costs = [
        _measure(one, task, Run(trial_folder(one.run, one.settings)), judge, needs_pool=at == len(jobs) - 1)
        for at, one in enumerate(jobs)
    ]
    all_costs = [*costs, *(replace(costs[-1], n_views=0) for _ in temperatures), _last_cost(job, costs[-1])]
    job.reporter.say(announce(all_costs, is_compared=True, is_measured=is_usual(job.settings)))
    then_s = [sum(cost.seconds for cost in all_costs[at + 1 :]) for at in range(len(all_costs) - 1)]
    tried: list[Tried] = []
    for one, cost, after in zip(jobs, costs, then_s, strict=False):
        if not _add(tried, one, task, judge, cost, after):
            break
    else:
        best = _best(tried)
        seen = best.learned.with_trunk(task)
        for temperature, after in zip(temperatures, then_s[len(costs) :], strict=True):
            one = replace(best.job, settings=best.job.settings.at_temperature(temperature))
            cost = replace(best.cost, n_views=0).as_measured([row["seconds"] for row in best.learned.metrics])
            if best.choice.is_hopeless or not _add(tried, one, seen, judge, cost, after):
                break
    return _keep_best(job, tried) if tried else None


def _add(tried: list[Tried], job: TrainingJob, task: Task, judge: TrialJudge, cost: Cost, after_s: float) -> bool:
    """Run one more trial; False where it was stopped. `after_s` are the seconds of the trainings after it."""
    folder = trial_folder(job.run, job.settings)
    how: dict[str, Any] = {"then_s": cost.judging_s + after_s, "goes_on": judge.watch(Run(folder))}
    learned = train_on(job, task, trial_settings(job.settings), folder, cost, **how)
    if learned is None:
        return False
    choice, n_epochs = at_end, _ = judge.choose(learned.embeddings, learned.predicted), len(learned.metrics)
    if learned.is_done:
        choice, n_epochs = judge.best(at_end, n_epochs, Run(folder))
    else:
        choice = at_end = replace(at_end, is_stopped=True)
    about: dict[str, Any] = {"choice": choice, "n_epochs": n_epochs, "at_end": at_end}
    tried.append(Tried(job=job, folder=folder, cost=cost, learned=learned, **about))
    return learned.is_done


def _keep_best(job: TrainingJob, tried: Sequence[Tried]) -> Tried:
    """The best trial; it is written down and said what was tried, and what the others' trunk computed is deleted."""
    best = _best(tried)
    for other in tried:
        if not other.learned.shares_trunk(best.learned):
            other.learned.free_trunk()
    about = {"epochs": best.n_epochs, "trials": [one.to_dict() for one in tried]}
    job.run.write_json("choice", best.choice.to_dict() | about)
    if len(tried) > 1:
        job.reporter.say(describe_tried(tried, best))
    said = best.ended(is_stopped=True) if job.is_asked() else best
    job.reporter.say(said.choice.in_words())
    return best


def describe_tried(tried: Sequence[Tried], best: Tried) -> str:
    """Say what was tried, how much of the judging images it put right, and what is kept."""
    shown = ", ".join(f"{one.in_words()} ({part_of(one.accuracy, one.choice.n_images)} right)" for one in tried)
    return f"tried to train {shown}; kept: {best.in_words()}"


def _best(tried: Sequence[Tried]) -> Tried:
    return max(tried, key=lambda one: int(one.choice.chosen.right.sum()))


def _measure(job: TrainingJob, task: Task, done: Run, judge: TrialJudge | None, *, needs_pool: bool = False) -> Cost:
    """What a training will take, with its judging where it is a trial."""
    cost = measure(job, task, done, needs_pool=needs_pool)
    return cost if judge is None else replace(cost, judging_s=judge.trial_s(job.n_epochs))


def _last_cost(job: TrainingJob, cost: Cost) -> Cost:
    """What the training with all labels will take after a trial of that cost."""
    return cost.of_next(last_share(job.settings.method, job.n_epochs), job.n_done(job.run))


def known_number(job: TrainingJob) -> int | None:
    """The number of categories that training is told: the given one, or the first answer's where a method needs it."""
    if get_method(job.settings.method).needs_n_clusters:
        return job.first.discovery.n_clusters
    return job.settings.n_clusters
