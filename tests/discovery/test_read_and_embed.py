"""The first answer lies ready before training starts, and belongs to the very images it was made
from."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photo_runs import run_on, stop
from shoal.discovery import job as job_module
from shoal.discovery import pipeline as module
from shoal.discovery.reporter import Reporter
from shoal.encoders import engines, vision
from shoal.errors import MissingError, UsageError
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def interrupted(photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that was stopped right before training; its first image is a bitmap, which has a size
    of its own."""
    first = photos.folder / min(photos.truth)
    Image.open(first).save(first, format="BMP")
    with monkeypatch.context() as patched:
        patched.setattr(module, "answer_trained", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "run", settings)
    return Run(tmp_path / "run")


def test_the_first_answer_is_a_finished_run_with_its_report_before_training_starts(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def look(*_args: object) -> None:
        first = Run.open(tmp_path / "run" / "frozen")
        assert len(first.assignments) == len(first.thumbnails(range(60))) == 60
        assert "5 categories in 60 images" in (first.path / "report.html").read_text()
        assert heard[-1].startswith("Frozen result: Found 5 categories")
        assert heard[-1].endswith(f"Open {first.path / 'report.html'} while training continues.")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "answer_trained", look)
    with pytest.raises(KeyboardInterrupt):
        run_on(
            photos,
            tmp_path / "run",
            replace(settings, n_clusters=5),
            reporter=Reporter(heard.append),
        )
    log = tmp_path / "run" / "train.log"
    assert (
        log.read_text()
        .splitlines()[-1]
        .endswith("interrupted; the same command with --resume continues")
    )
    with pytest.raises(
        KeyboardInterrupt
    ):  # and is there again, without being made again, when it is resumed
        run_on(
            photos,
            tmp_path / "run",
            replace(settings, n_clusters=5),
            reporter=Reporter(heard.append),
            resume=True,
        )


@pytest.mark.slow
def test_an_image_replaced_by_another_of_the_same_size_in_bytes_is_not_resumed_with(
    photos, settings, interrupted: Run
) -> None:
    first = photos.folder / min(photos.truth)
    n_bytes = first.stat().st_size
    Image.fromarray(255 - np.asarray(Image.open(first))).save(first, format="BMP")
    assert first.stat().st_size == n_bytes
    with pytest.raises(
        UsageError, match=r"cannot be resumed, because the images changed .* give --force"
    ):
        run_on(photos, interrupted.path, settings, resume=True)
    assert run_on(photos, interrupted.path, settings, force=True).is_finished


@pytest.mark.slow
def test_other_weights_in_the_folder_of_the_encoder_are_not_resumed_with(
    photos, settings, interrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = job_module.load_encoder

    def load_other(*given, **named):
        encoder = load(*given, **named)
        next(encoder.tail.parameters()).data.add_(1e-3)
        return encoder

    with monkeypatch.context() as patched:
        patched.setattr(job_module, "load_encoder", load_other)
        with pytest.raises(
            UsageError, match="cannot be resumed, because the encoder changed after"
        ):
            run_on(photos, interrupted.path, settings, resume=True)
    assert run_on(photos, interrupted.path, settings, resume=True).is_finished


@pytest.mark.slow
def test_embeddings_of_which_nobody_knows_what_they_were_made_from_are_made_again(
    photos, settings, interrupted: Run
) -> None:
    good = np.array(interrupted.array("frozen"))
    interrupted.write_array("frozen", good[::-1])
    interrupted.note(made_from=None)
    run = run_on(photos, interrupted.path, settings, resume=True)
    assert np.array_equal(run.array("frozen"), good)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_a_resumed_run_keeps_to_the_engine_that_it_was_begun_with(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_trunk = vision.compile_trunk

    def spy(*given, **named):
        compiled.append(given[3])
        return compile_trunk(*given, **named)

    monkeypatch.setattr(vision, "compile_trunk", spy)
    for engine, other in (("torch", "openvino"), ("openvino", "torch")):
        place = tmp_path / engine
        with monkeypatch.context() as patched:
            patched.setenv("SHOAL_ENGINE", engine)
            patched.setattr(module, "answer_trained", stop)
            with pytest.raises(KeyboardInterrupt):
                run_on(photos, place, settings)
        assert Run(place).provenance["made_from"]["engine"] == engine
        with monkeypatch.context() as patched:
            patched.setattr(engines, "has_openvino", lambda: False)
            if engine == "openvino":
                with pytest.raises(
                    MissingError,
                    match=r"begun with the engine 'openvino': .* pip install .* --force",
                ):
                    run_on(photos, place, settings, resume=True)
        monkeypatch.setenv("SHOAL_ENGINE", other)
        compiled.clear()
        assert run_on(photos, place, settings, resume=True).is_finished
        assert set(compiled) == {engine} - {"torch"}
        with monkeypatch.context() as patched:  # of a finished run nothing is left to do
            patched.setattr(engines, "has_openvino", lambda: False)
            patched.delenv("SHOAL_ENGINE")
            assert run_on(photos, place, settings, resume=True).is_finished
