"""Trials of several depths, and their interruption."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from photo_runs import press_ctrl_c, run_on, stop
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained import trained_result as trials
from shoal.discovery.trained.trained_result import depths_to_try

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
GPU = torch.device("cuda")
SAME = ("choice.json", "assignments.csv", "model.safetensors", "embeddings.npy")


@pytest.fixture
def wanted(photos, settings, monkeypatch) -> DiscoverySettings:
    """Settings that hide one of the three known colors; some labels are wrong, so that accuracy
    stays below 1."""
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
def test_two_depths_are_tried_on_a_gpu_unless_others_are_set(given, device, depths) -> None:
    assert depths_to_try(DiscoverySettings(**given), device) == depths


def assert_same(resumed, whole) -> None:
    held = [name for name in SAME if whole.has(name)]
    for name in held:
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.slow
def test_each_depth_is_tried_and_an_interrupted_run_resumes_to_the_same_bytes(
    photos, wanted, tmp_path: Path, monkeypatch
) -> None:
    wanted = replace(wanted, depths=(1, 2))
    whole = run_on(photos, tmp_path / "whole", wanted)
    assert [one["n_tail_blocks"] for one in whole.json("choice")["trials"]] == [1, 2]
    assert not list(whole.path.glob("trial-*")), "what the trials computed is deleted"
    with monkeypatch.context() as patched:
        patched.setattr(trials, "listed", stop)  # when all trials are done
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "resumed", wanted)
    assert_same(run_on(photos, tmp_path / "resumed", wanted, resume=True), whole)


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_uses_the_frozen_result(
    photos, wanted, tmp_path: Path
) -> None:
    def press(line: str) -> None:
        if "up to" in line and "Ctrl-C" in line:
            press_ctrl_c()

    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(press))
    assert run.is_finished
    assert run.provenance["stopped_early"] == {"epochs": 0, "of": 2}
    assert not run.has("model.safetensors")
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert_same(resumed, run_on(photos, tmp_path / "whole", wanted))


@pytest.mark.slow
def test_ctrl_c_in_the_second_trial_ends_training(photos, wanted, tmp_path: Path) -> None:
    wanted = replace(wanted, depths=(1, 2))
    epochs: list[str] = []

    def press(line: str) -> None:
        epochs.append(line)
        if len(epochs) == 3:
            press_ctrl_c()

    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(detail=press))
    assert len(epochs) == 3
    assert run.provenance["stopped_early"] == {"epochs": 1, "of": 2}
    assert run.json("choice")["result"] == run.provenance["result"]
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert_same(resumed, run_on(photos, tmp_path / "whole", wanted))
