"""What is said before a training, and how its bars go on: views, then steps, each with the time of all that follows."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from photo_runs import run_on, stop
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained import training_job
from shoal.discovery.trained.choice import Tried
from shoal.discovery.trained.training_job import _bars, announce, measured_gain
from shoal.methods.clusters import Representation
from shoal.methods.registry import load_recipe
from shoal.methods.task import Task
from shoal.progress import Progress
from shoal.training import model
from shoal.training.cost import Cost
from shoal.training.tokens import TokenCache

pytestmark = pytest.mark.usefixtures("one_thread")

COST = Cost(n_views=1000, view_s=0.06, n_epochs=10, steps_per_epoch=5, step_s=2.4)


def listening(heard: list[object]) -> Reporter:
    """Hears what is said, and of each bar when it begins and ends."""

    @contextmanager
    def show(what: str, unit: str) -> Iterator[Progress]:
        heard.append((what, unit))
        yield lambda done, total: heard.append((done, total))
        heard.append(f"end of {what}")

    return Reporter(heard.append, show)


def test_it_is_announced_what_training_takes_what_it_may_bring_and_how_to_stop_it() -> None:
    again = COST.of_next(1.0, n_done=0)
    gain = measured_gain(choose_settings())
    assert gain != ""
    assert measured_gain(choose_settings(recipe="cpu")) == f"{gain}, with the recipe default"
    for other in (
        {"epochs": 8},
        {"method": "gcd"},
        {"input_size": 96},
        {"changes": {"depths": [1, 5]}},
    ):
        assert measured_gain(choose_settings(**other)) == "", other
    alone = announce([COST], is_compared=False)
    compared = announce([COST, again], is_compared=True, gain=gain)
    assert alone == (
        "training takes about 3 minutes on this machine (1,000 views and 50 steps); it may help much or not at all. "
        "Ctrl-C once stops it and keeps the best answer so far, Ctrl-C twice quits and --resume goes on"
    )
    assert compared.startswith(
        "training takes about 5 minutes on this machine (1,000 views and 100 steps); it may"
    )
    assert (
        "not at all (of 100 images 8 to 16 more were right on three collections of over 3,000, 1 fewer"
        in compared
    )
    assert (
        "none on 150), and labels that it does not see decide which answer stands. Ctrl-C once"
        in compared
    )
    slower = replace(COST, step_s=4.8)
    twice = announce([COST, slower, slower.of_next(1.0, n_done=0)], is_compared=True)
    assert twice.startswith(
        "training takes about 12 minutes on this machine (2,000 views and 150 steps); "
    )


def test_there_is_a_bar_of_views_and_then_one_of_steps() -> None:
    heard: list[object] = []
    with _bars(SimpleNamespace(reporter=listening(heard), is_asked=lambda: False)) as tell:
        tell("views", 1000, 1000)
        tell("steps", 1, 50)
    assert heard == [
        ("preparing views", "views"),
        (1000, 1000),
        "end of preparing views",
        ("training", "steps"),
        (1, 50),
        "end of training",
    ]


@pytest.mark.slow
def test_a_trial_of_each_depth_is_announced_before_its_views_are_made(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("shoal.discovery.trained.withheld.MIN_CATEGORIES", 2)
    monkeypatch.setattr(Tried, "is_full", False)
    heard: list[object] = []
    wanted = replace(settings, n_clusters=5, hidden_share=0.4, depths=(1, 2))
    run_on(photos, tmp_path / "run", wanted, reporter=listening(heard))
    (announced,) = [line for line in heard if str(line).startswith("training takes")]
    assert "labels that it does not see decide" in announced
    assert heard.index(announced) < heard.index(("preparing views", "views"))


@pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)
def test_the_tokens_that_embedding_leaves_spare_training_its_own_and_a_resumed_run_has_the_same_bytes(
    photos, settings, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("SHOAL_ENGINE", "openvino")
    counted: list[int] = []
    real = model.cache_tokens

    def cache_tokens(pixels, *others, **how):
        counted.append(len(pixels))
        return real(pixels, *others, **how)

    monkeypatch.setattr(model, "cache_tokens", cache_tokens)
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


@pytest.mark.parametrize(("n_tail_blocks", "is_given"), [(1, True), (5, False)])
def test_tokens_are_given_to_a_training_that_splits_the_encoder_in_the_same_place(
    n_tail_blocks, is_given
) -> None:
    left = Representation(embeddings=torch.eye(4), embed=lambda pixels: torch.eye(4))
    job = SimpleNamespace(
        frozen=replace(left, tokens=TokenCache(torch.ones(4, 2), 1)), n_tail_blocks=1
    )
    task = Task(pixels=np.zeros((4, 8, 8, 3), dtype=np.uint8), labels=np.array([0, 1, -1, -1]))
    chosen = load_recipe("cpu")
    given = training_job._with_tokens(
        job, task, replace(chosen, n_tail_blocks=n_tail_blocks)
    ).tokens
    assert (given is not None) is is_given
    assert given is None or given.batch_size == 2 * chosen.training.batch_size, (
        "as training makes them itself"
    )
