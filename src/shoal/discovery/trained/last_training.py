"""The training with all labels that follows a trial in which training helped.

Everything that belongs to it is here: without it, the result is that of the trial.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import NOTE
from shoal.discovery.trained.evaluation import Trial
from shoal.discovery.trained.training_job import note_stopped, train_on
from shoal.distributed import flag_from_main
from shoal.methods.clusters import Representation
from shoal.methods.registry import get_method
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.training.collapse import is_collapsed
from shoal.training.model import Model
from shoal.words import count

LAST_SHARE = 0.4
"""Epochs of the training with all labels, as a share of a trial's, where it goes on from the trial. Held-out labels
cannot tell it from a whole training that begins anew (benchmarks/results/2026-11-17_h200_short_trainings.md)."""


def train_with_all_labels(trial: Trial, task: Task) -> Representation | None:
    """Train again after a trial, with the labels that were held out from it.

    None where the trial did not help, or the last training was stopped or has collapsed: the result is the trial's.
    """
    job = trial.job
    is_wanted = trial.choice.kept == "trained" and trial.learned.is_done
    settings, start = _last_settings(job.settings, trial.learned)
    if is_wanted:
        job.run.note(trial_epochs=len(trial.learned.metrics))
    job = replace(job, settings=settings)
    if not is_wanted or job.stop():
        flag_from_main(False, job.device)
        if is_wanted:  # the user has stopped it while the trial was evaluated
            note_stopped(job, 0)
        return None
    flag_from_main(True, job.device)
    job.reporter.say(
        f"training goes on for {count(job.n_epochs, 'epoch')}, with the labels that were held out"
    )
    learned = train_on(
        job, trial.learned.with_trunk(task), settings.of_method, job.run.path, start=start
    )
    if learned is None or not learned.is_done:
        return None
    if is_collapsed(learned.embeddings):
        job.reporter.say(
            f"{NOTE}the training with all labels has collapsed: using the one before it"
        )
        return None
    return learned


def share_last_training(
    learned: Representation,
    task: Task,
    run: Run,
    settings: DiscoverySettings,
    device: torch.device,
    resume: bool,
) -> None:
    """Train what the main process trains after the trial, in a process that helps."""
    if not flag_from_main(False, device):
        return
    settings, start = _last_settings(settings, learned)
    get_method(settings.method).represent(
        learned.with_trunk(task),
        settings.of_method,
        folder=run.path,
        device=device,
        resume=resume,
        start=start,
    )


def _last_settings(
    settings: DiscoverySettings, learned: Representation
) -> tuple[DiscoverySettings, Model[Any] | None]:
    """The settings with fewer epochs, and the model to go on from; a method that cannot begins anew.

    Anew for as many epochs as were best in the trial.
    """
    if get_method(settings.method).goes_on_from_trial:
        n_epochs = max(1, round(LAST_SHARE * settings.of_method.training.epochs))
        return settings.with_epochs(n_epochs), learned.model
    return settings.with_epochs(learned.epoch), None


def trained_in(trial: Trial, last: Representation | None) -> Path:
    """The folder with the networks and metrics of the result."""
    return trial.folder if last is None else trial.job.run.path
