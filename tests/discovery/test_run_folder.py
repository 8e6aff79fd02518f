"""The folder of a run: a new one, an interrupted one taken up again, a finished one left alone."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from photo_runs import run_on, stop
from shoal.data.readers import read_collection
from shoal.discovery import pipeline as module
from shoal.discovery import read_and_embed as reading
from shoal.discovery.reporter import Reporter
from shoal.discovery.run_folder import collection_checksum
from shoal.errors import DataError, ShoalError, UsageError
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def test_an_unfinished_run_is_taken_up_only_when_asked(photos, settings, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.start(settings, seed=0, device="cpu", command="")
    with pytest.raises(
        UsageError, match="holds an unfinished run; give --resume to continue it, or --force"
    ):
        run_on(photos, run.path, settings)
    assert run_on(photos, run.path, replace(settings, train=False), force=True).is_finished
    with pytest.raises(UsageError, match="holds a finished run; give --force"):
        run_on(photos, run.path, settings)


def test_a_full_cache_leaves_no_run_so_that_the_same_call_works_when_there_is_room(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, train=False)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
        with pytest.raises(ShoalError, match="SHOAL_CACHE"):
            run_on(photos, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    assert run_on(photos, tmp_path / "run", settings).is_finished


def test_what_fails_before_embeddings_are_kept_leaves_a_run_only_where_it_may_still_be_resumed(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_how: object) -> None:
        raise UsageError("cannot be written; choose another path")

    settings = replace(settings, train=False)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_embed_frozen", refuse)
        with pytest.raises(UsageError, match="choose another path"):
            run_on(photos, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_embed_frozen", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "run", settings)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "record_inputs", refuse)
        with pytest.raises(UsageError, match="choose another path"):
            run_on(photos, tmp_path / "run", settings, resume=True)
    assert run_on(photos, tmp_path / "run", settings, resume=True).is_finished


def test_a_finished_run_is_left_as_it_is_when_it_is_resumed(
    photos, settings, tmp_path: Path
) -> None:
    settings = replace(settings, train=False)
    before = {
        file.name: file.read_bytes()
        for file in run_on(photos, tmp_path / "run", settings).path.iterdir()
    }
    heard: list[str] = []
    run = run_on(photos, tmp_path / "run", settings, resume=True, reporter=Reporter(heard.append))
    assert heard[2:] == [f"{run.path} is finished, there is nothing left to do"]
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    with pytest.raises(UsageError, match="made with other settings: train: True, was False"):
        run_on(photos, run.path, replace(settings, train=True), resume=True)


def test_a_resumed_run_must_be_the_same_run_and_differences_are_listed(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "answer_trained", stop)
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
    with pytest.raises(UsageError, match="the images or their labels"):
        run_on(photos, tmp_path / "run", settings, resume=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: first"))
    with pytest.raises(
        DataError, match=r"config.yaml, line \d+: damaged or edited, seed: found 'first', expected"
    ):
        run_on(photos, tmp_path / "run", settings, resume=True)


def test_images_that_changed_in_size_are_other_images(photos, settings) -> None:
    before = collection_checksum(read_collection(photos.folder, photos.labels))
    name = next(iter(photos.truth))
    (photos.folder / name).write_bytes((photos.folder / name).read_bytes() + b"\0")
    assert collection_checksum(read_collection(photos.folder, photos.labels)) != before
