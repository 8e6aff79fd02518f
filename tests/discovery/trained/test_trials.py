"""Depths and temperatures that are tried: which, in what order, what is kept, and a run that was interrupted."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import shoal.discovery.trained.trials as trials
from photo_runs import press_ctrl_c, run_on, stop
from shoal.clustering.blend import TriedWeight, choose_weight
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import SILENT, Reporter
from shoal.discovery.trained.choice import Choice, Tried
from shoal.discovery.trained.training_job import TrainingJob
from shoal.discovery.trained.trial_judge import TrialJudge
from shoal.discovery.trained.trials import depths_to_try, first_trial, temperatures_to_try
from shoal.errors import UsageError
from shoal.methods.clusters import Representation
from shoal.methods.task import Task
from shoal.runs import Run
from shoal.training.cost import Cost

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("given", "device", "depths", "temperatures"),
    [
        ({}, CPU, (1,), (0.1,)),
        ({}, GPU, (1, 5), (0.1,)),
        ({"max_minutes": 30}, GPU, (1, 5), (0.1, 0.2)),
        ({"max_minutes": 30}, CPU, (1, 5), (0.1, 0.2)),
        ({"depths": (2, 3), "temperatures": (0.3,)}, CPU, (2, 3), (0.3,)),
        ({"temperatures": (0.3, 0.1)}, GPU, (1, 5), (0.3, 0.1)),
        ({"method": "uno"}, GPU, (1, 5), (None,)),
    ],
)
def test_more_than_one_training_is_tried_where_there_is_time_or_it_is_asked_for(
    given, device, depths, temperatures
) -> None:
    settings = DiscoverySettings(**given)
    assert depths_to_try(settings, device) == depths
    assert temperatures_to_try(settings, device) == temperatures
    first = first_trial(settings, device)
    assert (first.of_method.n_tail_blocks, first.temperature) == (depths[0], temperatures[0])


def test_several_processes_try_the_first_alone(monkeypatch) -> None:
    monkeypatch.setattr(trials, "is_started", lambda: True)
    settings = DiscoverySettings(depths=(5, 1), temperatures=(0.2, 0.1))
    assert depths_to_try(settings, CPU) == (5,)
    assert temperatures_to_try(settings, CPU) == (0.2,)


@pytest.mark.parametrize("temperatures", [(0.1, 0.1), (0.0,), (float("nan"),)])
def test_temperatures_that_say_nothing_are_refused(temperatures) -> None:
    with pytest.raises(UsageError, match=r"temperatures: found .* different numbers above 0"):
        DiscoverySettings(temperatures=temperatures)


def test_a_method_without_a_temperature_takes_none() -> None:
    with pytest.raises(UsageError, match=r"temperatures: the method uno has no loss\.temperature"):
        DiscoverySettings(method="uno", temperatures=(0.1, 0.2))


@pytest.mark.slow
def test_other_temperatures_are_tried_on_the_views_of_the_best_depth_and_a_resume_tries_them_again(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """One depth and both temperatures; what the judge says is raised for the higher temperature, so that it is kept."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Choice, "is_hopeless", False)
    monkeypatch.setattr(Choice, "keeps_training", True)
    monkeypatch.setattr(Tried, "is_full", False)
    monkeypatch.setattr(
        "shoal.discovery.trained.choice.best_of",
        lambda tried: max(tried, key=lambda one: one.job.settings.temperature),
    )
    wanted = replace(settings, n_clusters=5, hidden_share=0.4, depths=(1,), temperatures=(0.1, 0.2))
    heard: list[str] = []
    bars: list[str] = []
    losses: list[tuple[Path, float]] = []
    real = trials.train_on

    def train_on(job, task, chosen, folder, *others, **options):
        losses.append((folder, chosen.loss.temperature))
        return real(job, task, chosen, folder, *others, **options)

    monkeypatch.setattr("shoal.discovery.trained.trials.train_on", train_on)
    monkeypatch.setattr(Reporter, "progress", counting(Reporter.progress, bars))
    whole = run_on(photos, tmp_path / "whole", wanted, reporter=Reporter(heard.append))
    assert [temperature for _, temperature in losses] == [0.1, 0.2, 0.2], (
        "two trials, and the training with all labels"
    )
    assert len({folder for folder, _ in losses}) == 3
    assert bars.count("preparing views") == 1
    found = whole.json("choice")["trials"]
    assert [(one["n_tail_blocks"], one["temperature"]) for one in found] == [(1, 0.1), (1, 0.2)]
    (said,) = [line for line in heard if line.startswith("tried to train")]
    assert said.endswith("kept: 1 block at temperature 0.2")
    assert not list(whole.path.glob("trial-*")), "what the trials computed is deleted"

    with monkeypatch.context() as patched:  # between the second trial and the last training
        patched.setattr(Tried, "to_dict", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "resumed", wanted)
    resumed = run_on(photos, tmp_path / "resumed", wanted, resume=True)
    for name in ("choice.json", "assignments.csv", "model.safetensors", "embeddings.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.parametrize(("n_right", "n_tried"), [([1, 1, 1, 1], 1), ([1, 1, 1, 0], 4)])
def test_nothing_is_tried_after_a_trial_that_puts_all_judging_images_right(
    tmp_path: Path, monkeypatch, n_right: list[int], n_tried: int
) -> None:
    right = np.array(n_right, dtype=bool)
    choice = Choice(
        hidden=(),
        tried=[TriedWeight(weight=weight, n_shifts=1, right=right) for weight in (0.65, 1.0)],
    )
    learned = Representation(embeddings=torch.eye(4), embed=lambda pixels: torch.eye(4))
    trained = []
    kept = []
    settings = DiscoverySettings(depths=(1, 2), temperatures=(0.1, 0.2, 0.3))
    job = TrainingJob(
        frozen=learned,
        first=None,
        images=None,
        run=Run(tmp_path),
        settings=settings,
        resume=False,
        reporter=SILENT,
        tensorboard=False,
    )
    judge = SimpleNamespace(
        trial_s=lambda n: 0.0,
        watch=lambda run: None,
        at_end=lambda *_: {"choice": choice, "n_epochs": 2, "at_end": choice},
    )
    task = Task(pixels=np.zeros((4, 8, 8, 3), dtype=np.uint8), labels=np.array([0, 1, -1, -1]))
    cost = Cost(n_views=0, view_s=0.0, n_epochs=2, steps_per_epoch=1, step_s=0.0)
    monkeypatch.setattr(trials, "measure", lambda *_, **__: cost)
    monkeypatch.setattr(trials, "train_on", lambda *_, **__: (trained.append(1), learned)[1])
    monkeypatch.setattr(trials, "keep_best", lambda job, tried: kept.extend(tried))
    trials.run_trials(job, judge, task)
    assert len(trained) == len(kept) == n_tried, (
        "two depths and, at one of them, two other temperatures"
    )


@pytest.mark.slow
def test_ctrl_c_between_the_announcement_and_the_first_bar_keeps_the_first_answer(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    wanted = replace(settings, n_clusters=5, hidden_share=0.4)

    def press(line: str) -> None:
        if line.startswith("training takes"):
            press_ctrl_c()

    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(press))
    assert run.is_finished
    assert run.provenance["stopped_early"] == {"epochs": 0, "of": 2}
    assert not run.has("model.safetensors")
    assert run_on(photos, tmp_path / "run", wanted, resume=True).has("choice.json")


@pytest.mark.slow
def test_ctrl_c_in_the_second_trial_is_the_end_of_training(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """The first one stands only where it is better, which is said once; its training with all labels is not begun."""
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Choice, "is_hopeless", False)
    monkeypatch.setattr(Tried, "is_full", False)
    wanted = replace(settings, n_clusters=5, hidden_share=0.4, depths=(1, 2))
    epochs: list[str] = []

    def press(line: str) -> None:
        epochs.append(line)
        if len(epochs) == 3:
            press_ctrl_c()

    heard: list[str] = []
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(heard.append, detail=press))
    assert len(epochs) == 3
    assert run.provenance["stopped_early"] == {"epochs": 1, "of": 2}
    assert len([line for line in heard if "put right" in line]) == 1
    assert not [line for line in heard if line.startswith(("training goes on", "training again"))]
    choice = run.json("choice")
    answer = run.provenance["answer"]
    assert choice["kept"] == answer
    whole = run_on(photos, tmp_path / "whole", wanted)
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    for name in ("choice.json", "assignments.csv"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.slow
def test_ctrl_c_while_a_trial_is_judged_keeps_its_answer(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Choice, "is_hopeless", False)
    best = property(lambda self: choose_weight([trial for trial in self.tried if trial.weight < 1]))
    monkeypatch.setattr(Choice, "chosen", best)
    wanted = replace(settings, n_clusters=5, hidden_share=0.4)
    real = TrialJudge.choose

    def choose(self, embeddings, predicted):
        press_ctrl_c()
        return real(self, embeddings, predicted)

    with monkeypatch.context() as patched:
        patched.setattr(TrialJudge, "choose", choose)
        run = run_on(photos, tmp_path / "run", wanted)
    assert run.is_finished
    assert run.provenance["stopped_early"] == {"epochs": 0, "of": 2}, (
        "of the training with all labels"
    )
    assert run.has("model.safetensors"), "the trial's"
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    whole = run_on(photos, tmp_path / "whole", wanted)
    for name in ("choice.json", "assignments.csv", "model.safetensors", "embeddings.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def counting(real, bars: list[str]):
    def progress(self, what, *others):
        bars.append(what)
        return real(self, what, *others)

    return progress
