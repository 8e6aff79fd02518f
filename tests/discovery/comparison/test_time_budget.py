"""How many epochs fit, by hand-made costs."""

from dataclasses import replace

import pytest

from shoal.discovery.comparison.time_budget import (
    announce,
    describe_epochs,
    plan_epochs,
    read_epochs,
)
from shoal.errors import DataError, UsageError
from shoal.runs import Run
from shoal.training.cost import Cost


def cost(steps_s: float) -> Cost:
    return Cost(n_views=100, view_s=1.0, n_epochs=20, steps_per_epoch=1, step_s=steps_s / 20)


def seconds(epochs) -> float:
    """A minute for views, ten seconds for an epoch of cms, forty for one of gcd."""
    return 60 + 10 * epochs["cms"] + 40 * epochs["gcd"]


def test_everything_fits_or_all_methods_lose_the_same_share() -> None:
    full = {"cms": 20, "gcd": 10}
    assert plan_epochs(full, seconds, 11) == full  # 60 s of views, 20 · 10 and 10 · 40 s of epochs
    assert describe_epochs(full, full, 11) == "--max-minutes 11: all of the training fits"
    half = plan_epochs(full, seconds, 6)
    assert half == {"cms": 10, "gcd": 5}
    assert (
        describe_epochs(half, full, 6) == "--max-minutes 6: cms 10 of 20 epochs, gcd 5 of 10 epochs"
    )
    assert seconds(half) <= 360


def test_too_little_time_is_refused_with_what_it_takes() -> None:
    full = {"cms": 20, "gcd": 10}
    with pytest.raises(
        UsageError, match=r"found 2, but these trainings take about 11 minutes.*fewer --methods"
    ):
        plan_epochs(full, seconds, 2)
    with pytest.raises(UsageError, match="max_minutes"):
        plan_epochs(full, seconds, 0.5)  # not even the views


def test_a_training_that_was_short_anyway_is_not_refused() -> None:
    assert plan_epochs({"cms": 2, "gcd": 1}, seconds, 10) == {"cms": 2, "gcd": 1}


def test_the_plan_is_read_again_and_a_damaged_one_refused(tmp_path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_json("plan", {"epochs": {"cms": 4}})
    assert read_epochs(run) == {"cms": 4}
    run.write_json("plan", {"depths": [1]})
    with pytest.raises(DataError, match=r"plan\.json"):
        read_epochs(run)


def test_what_it_takes_is_said_with_views_once_for_all() -> None:
    said = announce([cost(60), cost(60)], 500, 60)
    assert said.startswith(
        "2 trainings take about 3 minutes on this machine (500 views, once for all of them, and 40 "
    )
    assert "and 1 step)" in announce([replace(cost(60), n_epochs=1)], 500, 60)
    assert announce([cost(60)] * 3, 500, 60, n_draws=3).startswith(
        "3 trainings (3 draws of kept labels) take"
    )
