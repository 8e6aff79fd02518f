"""Stopping a training run, its deadline, and reused tokens and views."""

import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from photo_runs import press_ctrl_c, run_on, stop
from shoal.discovery.trained.trained_result import stop_request, training_deadline
from shoal.methods import method
from shoal.training import inputs
from shoal.training.train_settings import ViewSettings

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_first_ctrl_c_requests_a_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_request() as is_asked:
        assert not is_asked()
        press_ctrl_c()
        assert is_asked()
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_is_requested_at_the_deadline() -> None:
    with stop_request(time.monotonic() + 3600) as is_asked:
        assert not is_asked()
    with stop_request(time.monotonic()) as is_asked:
        assert is_asked()


def test_the_deadline_reserves_time_for_the_steps_after_training() -> None:
    now = time.monotonic()
    job = SimpleNamespace(began_at=now - 50)
    images = SimpleNamespace(ready_at=now - 10)
    assert training_deadline(job, images, 2.0) == pytest.approx(now + 120 - 50 - 30, abs=1)
    assert training_deadline(job, images, None) == math.inf


def test_training_reuses_the_tokens_of_embedding_unless_torch_made_them(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    counted: list[int] = []
    real = method.cache_tokens

    def cache_tokens(pixels, *others, **options):
        counted.append(len(pixels))
        return real(pixels, *others, **options)

    monkeypatch.setattr(method, "cache_tokens", cache_tokens)
    wanted = replace(
        settings, n_clusters=5, method_settings=replace(settings.method_settings, n_tail_blocks=1)
    )
    whole = run_on(photos, tmp_path / "whole", wanted)
    made = [len(whole.array("frozen"))]
    expected = made if whole.provenance["made_from"]["engine"] == "torch" else []
    assert counted == expected
    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.api.make_frozen_result", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "resumed", wanted)
    resumed = run_on(photos, tmp_path / "resumed", wanted, resume=True)
    assert counted == expected + made, "which the resumed one had to make"
    for name in ("assignments.csv", "model.safetensors", "embeddings.npy", "frozen.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_a_training_killed_while_views_are_prepared_continues_with_the_cached_ones(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    """In parts of 8 views, of which the first run computes two."""
    monkeypatch.setattr(inputs, "TOKEN_BATCH", 8)
    method = settings.method_settings
    training = replace(method.training, views=ViewSettings(pool=2))
    wanted = replace(settings, n_clusters=5, method_settings=replace(method, training=training))
    prepared: list[int] = []
    stop_at: list[int] = [8, 8, 8]
    real = inputs.make_views

    def make_views(images, rows, *others):
        prepared.append(len(rows))
        if prepared == stop_at:
            raise KeyboardInterrupt
        return real(images, rows, *others)

    monkeypatch.setattr(inputs, "make_views", make_views)
    with pytest.raises(KeyboardInterrupt):
        run_on(photos, tmp_path / "resumed", wanted)
    stop_at.clear()
    prepared.clear()
    resumed = run_on(photos, tmp_path / "resumed", wanted, resume=True)
    n_left = sum(prepared)
    prepared.clear()
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "empty"))
    whole = run_on(photos, tmp_path / "whole", wanted)
    assert n_left == sum(prepared) - 16
    for name in ("assignments.csv", "model.safetensors", "embeddings.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name
