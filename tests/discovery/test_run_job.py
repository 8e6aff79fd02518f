"""The frozen result is written before training, and resuming checks its inputs."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photo_runs import run_on, stop
from shoal.discovery import api as module
from shoal.discovery import job as job_module
from shoal.discovery import run_job
from shoal.discovery.reporter import Reporter
from shoal.encoders import engines, vision
from shoal.errors import MissingError, UsageError
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def interrupted(photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run interrupted right before training; its first image is a bitmap, whose file size depends
    only on its dimensions."""
    first = photos.folder / min(photos.truth)
    Image.open(first).save(first, format="BMP")
    with monkeypatch.context() as patched:
        patched.setattr(module, "train_and_choose", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "run", settings)
    return Run(tmp_path / "run")


def test_the_frozen_result_is_a_finished_run_with_a_report_before_training(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []

    def look(*_args: object) -> None:
        first = Run.open(tmp_path / "run" / "frozen")
        assert len(first.assignments) == len(list(first.thumbnails(range(60)))) == 60
        assert "5 categories in 60 images" in (first.path / "report.html").read_text()
        assert messages[-1].startswith("Frozen result: Found 5 categories")
        assert messages[-1].endswith(f"See {first.path / 'report.html'} during training.")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train_and_choose", look)
    with pytest.raises(KeyboardInterrupt):
        run_on(
            photos,
            tmp_path / "run",
            replace(settings, n_clusters=5),
            reporter=Reporter(messages.append),
        )
    with pytest.raises(
        KeyboardInterrupt
    ):  # a resumed run finds the frozen result and does not compute it again
        run_on(
            photos,
            tmp_path / "run",
            replace(settings, n_clusters=5),
            reporter=Reporter(messages.append),
            resume=True,
        )


@pytest.mark.slow
def test_resuming_detects_an_image_replaced_by_one_of_the_same_file_size(
    photos, settings, interrupted: Run
) -> None:
    first = photos.folder / min(photos.truth)
    n_bytes = first.stat().st_size
    Image.fromarray(255 - np.asarray(Image.open(first))).save(first, format="BMP")
    assert first.stat().st_size == n_bytes
    with pytest.raises(
        UsageError, match=r"cannot be resumed, because the images changed .* give force=True"
    ):
        run_on(photos, interrupted.path, settings, resume=True)
    assert run_on(photos, interrupted.path, settings, force=True).is_finished


@pytest.mark.slow
def test_resuming_detects_other_weights_of_the_encoder(
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
def test_embeddings_without_recorded_inputs_are_recomputed(
    photos, settings, interrupted: Run
) -> None:
    good = np.array(interrupted.array("frozen"))
    interrupted.write_array("frozen", good[::-1])
    interrupted.note(made_from=None)
    run = run_on(photos, interrupted.path, settings, resume=True)
    assert np.array_equal(run.array("frozen"), good)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_a_resumed_run_uses_the_engine_it_was_started_with(
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
            patched.setattr(module, "train_and_choose", stop)
            with pytest.raises(KeyboardInterrupt):
                run_on(photos, place, settings)
        assert Run(place).provenance["made_from"]["engine"] == engine
        with monkeypatch.context() as patched:
            patched.setattr(engines, "has_openvino", lambda: False)
            if engine == "openvino":
                with pytest.raises(MissingError):
                    run_on(photos, place, settings, resume=True)
        monkeypatch.setenv("SHOAL_ENGINE", other)
        compiled.clear()
        assert run_on(photos, place, settings, resume=True).is_finished
        assert set(compiled) == {engine} - {"torch"}
        with monkeypatch.context() as patched:  # a finished run computes nothing
            patched.setattr(engines, "has_openvino", lambda: False)
            patched.delenv("SHOAL_ENGINE")
            assert run_on(photos, place, settings, resume=True).is_finished


def test_embeddings_are_cached_by_pixels_and_encoder(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run reads the embeddings of the first; with other inputs or a damaged file they
    are computed."""
    settings = replace(settings, n_clusters=5, train=False)
    embedded: list[int] = []
    real = run_job.embed

    def embed(pixels, *others, **options):
        embedded.append(len(pixels))
        return real(pixels, *others, **options)

    monkeypatch.setattr(run_job, "embed", embed)
    first = run_on(photos, tmp_path / "first", settings)
    second = run_on(photos, tmp_path / "second", replace(settings, n_clusters=6))
    assert embedded == [60]
    frozen = (first.path / "frozen.npy").read_bytes()
    assert (second.path / "frozen.npy").read_bytes() == frozen

    (cached,) = (tmp_path / "cache" / "embeddings").glob("*/*.npy")
    content = bytearray(cached.read_bytes())
    content[-1] ^= 1
    cached.write_bytes(content)
    third = run_on(photos, tmp_path / "third", settings)
    assert embedded == [60, 60]
    assert (third.path / "frozen.npy").read_bytes() == frozen
    assert cached.read_bytes() != content, "repaired"

    monkeypatch.setattr(run_job, "digest_weights", lambda encoder: "other weights")
    run_on(photos, tmp_path / "other encoder", settings)
    assert embedded == [60] * 3
    Image.new("RGB", (64, 64)).save(photos.folder / min(photos.truth))
    run_on(photos, tmp_path / "other pixels", settings)
    assert embedded == [60] * 4
