"""Whether to train, which result is used, and stopping at any moment."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patched_method import collapsing
from photo_runs import press_ctrl_c, run_on
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained import trained_result
from shoal.discovery.trained.evaluation import FROZEN_WEIGHT, Choice, Evaluation, HeldOutAccuracy
from shoal.discovery.trained.trained_result import reason_not_to_train
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def with_training(settings: DiscoverySettings, **values) -> DiscoverySettings:
    return replace(
        settings,
        method_settings=replace(
            settings.method_settings, training=replace(settings.method_settings.training, **values)
        ),
    )


def hiding(settings: DiscoverySettings, monkeypatch, **values) -> DiscoverySettings:
    """Return settings with which one of the three known colors is hidden from training."""
    monkeypatch.setattr("shoal.discovery.trained.evaluation.MIN_CATEGORIES", 2)
    return replace(with_training(settings, **values), n_clusters=5, hidden_share=0.4)


def keep_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the trained result regardless of the held-out labels."""
    monkeypatch.setattr(Choice, "is_significant", True)
    monkeypatch.setattr(Choice, "is_hopeless", False)


def evaluation_of(n_wrong: int, n_images: int = 40) -> Evaluation:
    right = np.arange(n_images) >= n_wrong
    evaluation = Evaluation(job=None, images=None, held_out=None, frozen_discovery=None)
    evaluation.__dict__["frozen"] = HeldOutAccuracy(n_shifts=0, is_correct=right)
    return evaluation


@pytest.mark.parametrize(("n_wrong", "is_started"), [(0, False), (1, False), (4, False), (5, True)])
def test_training_is_skipped_if_no_result_could_be_significant_unless_requested(
    n_wrong, is_started
) -> None:
    evaluation = evaluation_of(n_wrong)
    assert (reason_not_to_train(choose_settings(), evaluation) == "") is is_started
    assert reason_not_to_train(choose_settings(train=True), evaluation) == ""
    assert reason_not_to_train(choose_settings(hidden_share=0.0), evaluation) == ""


def test_training_is_skipped_if_nothing_can_be_held_out_unless_requested() -> None:
    assert reason_not_to_train(choose_settings(), None)
    assert reason_not_to_train(choose_settings(train=True), None) == ""


def test_with_few_labels_training_is_skipped(photos, settings, tmp_path: Path) -> None:
    run = run_on(photos, tmp_path / "run", replace(settings, train=None, n_clusters=5))
    assert run.is_finished
    assert not run.is_stopped
    assert run.provenance["result"] == "frozen"
    assert not run.has("model.safetensors")
    assert not (run.path / "frozen").exists()


def test_without_held_out_labels_the_frozen_embeddings_have_the_default_weight(
    photos, settings, tmp_path
) -> None:
    weights = {}
    for name, hidden_share in (("usual", settings.hidden_share), ("trained", 0.0)):
        wanted = replace(with_training(settings, epochs=1), n_clusters=5, hidden_share=hidden_share)
        weights[name] = run_on(photos, tmp_path / name, wanted).json("model")["frozen_weight"]
    assert weights == {"usual": FROZEN_WEIGHT, "trained": 0.0}


def test_a_training_with_too_few_distinct_embeddings_is_not_used(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """Training is replaced by one whose embeddings are two distinct points, fewer than the five
    categories."""
    real = trained_result.get_method
    monkeypatch.setattr(trained_result, "get_method", lambda name: collapsing(real(name)))
    wanted = replace(with_training(settings, epochs=1), n_clusters=5)
    run = run_on(photos, tmp_path / "run", wanted)
    assert (run.is_finished, run.n_clusters, run.provenance["result"]) == (True, 5, "frozen")
    assert not (run.path / "frozen").exists()
    assert not (run.path / "trained").exists()
    assert not run.has("model.safetensors")


def test_without_a_significant_gain_the_frozen_result_is_used(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """Ten labels of easy images cannot show a significant gain; the trained result is a run inside
    the run."""
    wanted = hiding(settings, monkeypatch, epochs=2)
    run = run_on(photos, tmp_path / "run", wanted)
    choice = run.json("choice")
    assert (choice["result"], choice["is_significant"]) == ("frozen", False)
    assert run.provenance["result"] == "frozen"
    assert run.is_finished
    assert not run.is_stopped, "there is nothing to resume"


def test_training_resumes_to_the_same_bytes(photos, settings, tmp_path: Path, monkeypatch) -> None:
    """Some labels are wrong, so that no evaluation finds every held-out image correct."""
    head, *lines = photos.labels.read_text().splitlines()
    for row in range(0, len(lines), 2):
        lines[row] = f"{lines[row].partition(',')[0]},red"
    photos.labels.write_text("\n".join([head, *lines]))
    keep_training(monkeypatch)
    wanted = hiding(settings, monkeypatch, epochs=5)
    whole = run_on(photos, tmp_path / "whole", wanted)
    assert whole.provenance["result"] == "trained"

    def interrupt(line: str) -> None:
        if line.startswith("epoch 3:"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on(photos, tmp_path / "cut", wanted, reporter=Reporter(detail=interrupt))
    assert Run(tmp_path / "cut").has("evaluations.json")
    resumed = run_on(photos, tmp_path / "cut", wanted, resume=True)
    for name in ("model.safetensors", "assignments.csv", "choice.json"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in whole.metrics]
    assert not resumed.has("evaluations.json")


def stop_before_training(line: str) -> None:
    """Simulate Ctrl-C at the line that announces the training."""
    if "up to" in line and "Ctrl-C" in line:
        press_ctrl_c()


def test_ctrl_c_before_the_first_step_uses_the_frozen_result(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    wanted = hiding(settings, monkeypatch, epochs=2)
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(stop_before_training))
    assert run.is_finished
    assert run.provenance["stopped_early"] == {"epochs": 0, "of": 2}
    assert not run.has("model.safetensors")
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    whole = run_on(photos, tmp_path / "whole", wanted)
    for name in ("choice.json", "assignments.csv", "embeddings.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_a_resumed_run_keeps_no_arrays_of_the_frozen_result(photos, tmp_path: Path) -> None:
    """GCD shifts nothing."""
    wanted = choose_settings(
        config=photos.config, method="gcd", hidden_share=0, epochs=1, n_clusters=5
    )
    run = run_on(photos, tmp_path / "run", wanted, reporter=Reporter(stop_before_training))
    assert run.has("shifted.npy")
    resumed = run_on(photos, tmp_path / "run", wanted, resume=True)
    assert resumed.provenance["result"] == "trained"
    assert not resumed.has("shifted.npy")


def stopping_at(line: str):
    """Return a reporter that simulates Ctrl-C at a detail that starts with `line`."""
    return Reporter(detail=lambda output: press_ctrl_c() if output.startswith(line) else None)


def test_a_stopped_training_uses_its_best_result_so_far(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    keep_training(monkeypatch)
    monkeypatch.setattr("shoal.discovery.trained.evaluation.EVALUATE_AFTER", ())
    wanted = hiding(settings, monkeypatch, epochs=6)
    run = run_on(photos, tmp_path / "run", wanted, reporter=stopping_at("epoch 3:"))
    assert run.provenance["stopped_early"] == {"epochs": 3, "of": 6}
    assert run.json("choice")["epochs"] == 3
    assert run.has("model.safetensors")
    assert not list(run.path.glob("**/*.tokens*")), "what the trunk computed is deleted"


def test_the_time_limit_stops_training_like_ctrl_c(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    wanted = replace(hiding(settings, monkeypatch, epochs=6), max_minutes=1e-6)
    run = run_on(photos, tmp_path / "run", wanted)
    assert (run.is_finished, run.is_stopped) == (True, True)
    assert run.provenance["result"] == "frozen"
    assert "evaluating" not in (run.path / "train.log").read_text()


def test_a_stopped_training_without_evaluation_is_not_used(
    photos, settings, tmp_path: Path
) -> None:
    wanted = replace(with_training(settings, epochs=6), n_clusters=5)
    run = run_on(photos, tmp_path / "run", wanted, reporter=stopping_at("epoch 3:"))
    assert run.provenance["result"] == "frozen"
    assert (run.path / "trained" / "assignments.csv").exists()
    asked = replace(wanted, hidden_share=0.0)
    run = run_on(photos, tmp_path / "asked", asked, reporter=stopping_at("epoch 3:"))
    assert run.provenance["result"] == "trained"
