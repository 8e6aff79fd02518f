"""Trials of depths: which, what is kept, and a run that was interrupted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from photo_runs import press_ctrl_c, run_on, stop
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained import train_and_answer as trials
from shoal.discovery.trained.train_and_answer import depths_to_try

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
GPU = torch.device("cuda")
SAME = ("choice.json", "assignments.csv", "model.safetensors", "embeddings.npy")


@pytest.fixture
def wanted(photos, settings, monkeypatch) -> DiscoverySettings:
    """One of the three known colors is hidden from training; some labels are wrong, so not all can
    be right."""
    head, *lines = photos.labels.read_text().splitlines()
    for row in range(0, len(lines), 2):
        lines[row] = f"{lines[row].partition(',')[0]},red"
    photos.labels.write_text("\n".join([head, *lines]))
    monkeypatch.setattr("shoal.discovery.trained.held_out.MIN_CATEGORIES", 2)
    return replace(settings, n_clusters=5, hidden_share=0.4)


@pytest.mark.parametrize(
    ("given", "device", "depths"),
    [
        ({}, CPU, (1,)),
        ({"max_minutes": 30}, CPU, (1,)),
        ({}, GPU, (1, 5)),
        ({"method": "uno"}, GPU, (1, 5)),
        ({"depths": (2, 3)}, CPU, (2, 3)),
    ],
)
def test_two_depths_are_tried_on_a_gpu_or_those_that_are_asked_for(given, device, depths) -> None:
    assert depths_to_try(DiscoverySettings(**given), device) == depths


def assert_same(resumed, whole) -> None:
    held = [name for name in SAME if whole.has(name)]
    for name in held:
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.slow
def test_each_depth_is_tried_and_interrupted_between_them_the_bytes_are_the_same(
    photos, wanted, tmp_path: Path, monkeypatch
) -> None:
    wanted = replace(wanted, depths=(1, 2))
    whole = run_on(photos, tmp_path / "whole", wanted)
    assert [one["n_tail_blocks"] for one in whole.json("choice")["trials"]] == [1, 2]
    assert not list(whole.path.glob("trial-*")), "what the trials computed is deleted"
    with monkeypatch.context() as patched:
        patched.setattr(trials, "listed", stop)  # when all of them are done
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "resumed", wanted)
    assert_same(run_on(photos, tmp_path / "resumed", wanted, resume=True), whole)


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_keeps_the_frozen_result(
    photos, wanted, tmp_path: Path
) -> None:
    def press(line: str) -> None:
        if line.startswith("training up to"):
            press_ctrl_c()

    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(press))
    assert run.is_finished
    assert run.provenance["stopped_early"] == {"epochs": 0, "of": 2}
    assert not run.has("model.safetensors")
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert_same(resumed, run_on(photos, tmp_path / "whole", wanted))


@pytest.mark.slow
def test_ctrl_c_in_the_second_trial_is_the_end_of_training(photos, wanted, tmp_path: Path) -> None:
    wanted = replace(wanted, depths=(1, 2))
    epochs: list[str] = []

    def press(line: str) -> None:
        epochs.append(line)
        if len(epochs) == 3:
            press_ctrl_c()

    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(detail=press))
    assert len(epochs) == 3
    assert run.provenance["stopped_early"] == {"epochs": 1, "of": 2}
    assert run.json("choice")["kept"] == run.provenance["answer"]
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert_same(resumed, run_on(photos, tmp_path / "whole", wanted))
