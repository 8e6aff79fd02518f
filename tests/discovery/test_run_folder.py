"""The run folder: new, interrupted and resumed, or finished."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from photo_runs import run_on, stop
from shoal.discovery import api as module
from shoal.discovery import run_job as reading
from shoal.errors import DataError, ShoalError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_full_disk_of_the_cache_leaves_no_run(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, train=False)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
        with pytest.raises(ShoalError, match="SHOAL_CACHE"):
            run_on(photos, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    assert run_on(photos, tmp_path / "run", settings).is_finished


def test_a_failure_before_embeddings_are_stored_leaves_a_resumable_run(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_how: object) -> None:
        raise UsageError("cannot be written; choose another path")

    settings = replace(settings, train=False)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_embed_frozen", refuse)
        with pytest.raises(UsageError, match="choose another path"):
            run_on(photos, tmp_path / "run", settings)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_record_inputs", refuse)
        with pytest.raises(UsageError, match="choose another path"):
            run_on(photos, tmp_path / "run", settings, resume=True)
    assert run_on(photos, tmp_path / "run", settings, resume=True).is_finished


@pytest.mark.parametrize("resume", [False, True])
def test_the_same_call_returns_the_finished_run_unchanged(
    photos, settings, tmp_path: Path, resume: bool
) -> None:
    settings = replace(settings, train=False)
    before = {
        file.name: file.read_bytes()
        for file in run_on(photos, tmp_path / "run", settings).path.iterdir()
    }
    run = run_on(photos, tmp_path / "run", settings, resume=resume)
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    with pytest.raises(UsageError, match="train: True, was False"):
        run_on(photos, run.path, replace(settings, train=True), resume=resume)


def test_resuming_with_other_inputs_is_refused_with_the_differences(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "train_and_choose", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "run", settings)
    longer = replace(
        settings.method_settings, training=replace(settings.method_settings.training, epochs=7)
    )
    with pytest.raises(UsageError) as refused:
        run_on(
            photos, tmp_path / "run", replace(settings, seed=3, method_settings=longer), resume=True
        )
    assert "seed: 3, was 0; cms.training.epochs: 7, was 2" in str(refused.value)
    photos.labels.write_text(photos.labels.read_text().replace("blue", "navy"))
    with pytest.raises(UsageError, match="other images or labels"):
        run_on(photos, tmp_path / "run", settings, resume=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: first"))
    with pytest.raises(
        DataError, match=r"config.yaml: damaged or edited, .*seed: found 'first', expected"
    ):
        run_on(photos, tmp_path / "run", settings, resume=True)
