"""How a training is stopped, and what it is given."""

import importlib.util
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from photo_runs import press_ctrl_c, run_on, stop
from shoal.discovery.trained.training import stop_request
from shoal.methods import trunk

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_first_ctrl_c_asks_to_stop_and_the_second_does_what_it_always_does() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_request() as is_asked:
        assert not is_asked()
        press_ctrl_c()
        assert is_asked()
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_when_the_minutes_are_over_it_is_asked_to_stop() -> None:
    with stop_request(60.0) as is_asked:
        assert not is_asked()
    with stop_request(1e-4) as is_asked:
        time.sleep(0.01)
        assert is_asked()


@pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)
def test_the_tokens_that_embedding_leaves_spare_training_its_own(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("SHOAL_ENGINE", "openvino")
    counted: list[int] = []
    real = trunk.cache_tokens

    def cache_tokens(pixels, *others, **how):
        counted.append(len(pixels))
        return real(pixels, *others, **how)

    monkeypatch.setattr(trunk, "cache_tokens", cache_tokens)
    wanted = replace(
        settings, n_clusters=5, method_settings=replace(settings.method_settings, n_tail_blocks=1)
    )
    whole = run_on(photos, tmp_path / "whole", wanted)
    assert counted == []
    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.pipeline.answer_first", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(photos, tmp_path / "resumed", wanted)
    resumed = run_on(photos, tmp_path / "resumed", wanted, resume=True)
    assert counted == [len(whole.array("frozen"))], "which the resumed one had to make"
    for name in ("assignments.csv", "model.safetensors", "embeddings.npy", "frozen.npy"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name
