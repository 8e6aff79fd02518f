"""The trials of a run: trainings without the held-out labels, which then say what each is worth.

There is one for each depth of the tail. Several processes train together: what the main one tells the others, and what
these do when they hear it, comes last.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import decode
from shoal.discovery.reporter import SILENT
from shoal.discovery.trained.evaluation import Evaluation, Trial, TrialStopping
from shoal.discovery.trained.held_out import set_aside, training_tasks
from shoal.discovery.trained.last_training import share_last_training
from shoal.discovery.trained.training_job import TrainingJob, train_on
from shoal.distributed import flag_from_main, is_started, number_from_main
from shoal.encoders.catalog import DEFAULT_ENCODER
from shoal.methods.method import TrainedSettings
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.words import count, listed, percent

DEEP = 5
"""Blocks of the default encoder that are trained in a second trial on a GPU."""


def depths_to_try(settings: DiscoverySettings, device: torch.device) -> tuple[int | None, ...]:
    """How many blocks are trained, one trial each: those asked for, else the recipe's and, on a GPU, more."""
    usual = settings.of_method.n_tail_blocks
    depths: tuple[int | None, ...] = settings.depths or (usual,)
    is_default = settings.of_method.encoder == DEFAULT_ENCODER and device.type == "cuda"
    if not settings.depths and is_default and usual is not None and usual < DEEP:
        depths = (usual, DEEP)
    if is_started():
        return depths[:1]  # every process would have to make the views of each depth
    return depths


def trial_settings(settings: DiscoverySettings) -> TrainedSettings:
    """The method's settings for a trial; held-out labels choose its snapshot, not validation accuracy."""
    chosen: TrainedSettings = settings.of_method
    return replace(chosen, training=replace(chosen.training, snapshot="last"))


def trial_folder(run: Run, settings: DiscoverySettings) -> Path:
    """Where the trial of a depth is trained."""
    return run.path / f"trial-{settings.of_method.n_tail_blocks}"


def run_trials(job: TrainingJob, evaluation: Evaluation, task: Task) -> Trial | None:
    """Run a trial for each depth; the one with most held-out images right, the first of equals.

    None follows one in which all are right, or that was stopped. None where no epoch was finished.
    """
    depths = depths_to_try(job.settings, job.device)
    job.reporter.say(announce(job, depths))
    trials: list[Trial] = []
    for depth in depths:
        trial = _run_trial(replace(job, settings=job.settings.at_depth(depth)), evaluation, task)
        if trial is None:
            break
        trials.append(trial)
        if not trial.learned.is_done or trial.n_right == trial.choice.n_images:
            break
    if not trials:
        return None
    best = max(trials, key=lambda trial: trial.n_right)
    for trial in trials:
        if trial is not best:
            trial.learned.free_trunk()
    tried = [{"n_tail_blocks": trial.depth, "accuracy": trial.accuracy} for trial in trials]
    about = {"epochs": best.learned.epoch, "trials": tried}
    job.run.write_json("choice", best.choice.to_dict() | about)
    if len(trials) > 1:
        shown = [f"{_blocks(trial.depth)} ({percent(trial.accuracy)})" for trial in trials]
        job.reporter.say(f"held-out accuracy with {listed(shown)}; using {_blocks(best.depth)}")
    job.reporter.say(best.choice.in_words())
    return best


def announce(job: TrainingJob, depths: Sequence[int | None] = ()) -> str:
    """Say what will be trained, and how to end it early."""
    epochs = f"up to {count(job.n_epochs, 'epoch')}"
    if len(depths) > 1:
        epochs += f" for each of {listed([_blocks(depth) for depth in depths])}"
    return (
        f"training {epochs}; Ctrl-C once stops it and keeps the best result so far, "
        "Ctrl-C twice quits, and --resume goes on after either"
    )


def _blocks(depth: int | None) -> str:
    return "the encoder's own tail" if depth is None else f"{count(depth, 'trained block')}"


def _run_trial(job: TrainingJob, evaluation: Evaluation, task: Task) -> Trial | None:
    folder = trial_folder(job.run, job.settings)
    stopping = TrialStopping(
        evaluation=evaluation, trial=Run(folder), n_epochs=job.n_epochs, say=job.reporter.say
    )
    settings = trial_settings(job.settings)
    learned = train_on(job, task, settings, folder, early_stopping=stopping)
    if learned is None:
        return None
    return Trial(job=job, folder=folder, learned=learned, choice=evaluation.choose(learned))


def broadcast_training(n_clusters: int | None, device: torch.device) -> None:
    """Say that training begins, and the number of clusters that it is told."""
    flag_from_main(True, device)
    number_from_main(n_clusters, device)


def broadcast_no_training(device: torch.device) -> None:
    """Say that nothing is trained."""
    flag_from_main(False, device)


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
    held_out, settings = set_aside(images.collection, settings, SILENT)
    method = get_method(settings.method)
    task, last_task = training_tasks(images, held_out, number_from_main(None, device))
    if last_task is None:
        method.represent(task, settings.of_method, folder=run.path, device=device, resume=resume)
        return
    settings = settings.at_depth(depths_to_try(settings, device)[0])
    learned = method.represent(
        task,
        trial_settings(settings),
        folder=trial_folder(run, settings),
        device=device,
        resume=resume,
        keeps_trunk=True,
    )
    share_last_training(learned, last_task, run, settings, device, resume)
    learned.free_trunk()
