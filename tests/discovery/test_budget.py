"""How much training fits into the minutes that a user gives."""

from dataclasses import replace
from pathlib import Path

import pytest

from photo_runs import run_on
from shoal.discovery.budget import Plan, describe_plan, plan_training, read_plan
from shoal.discovery.reporter import Reporter
from shoal.errors import DataError, UsageError
from shoal.runs import Run
from shoal.training.cost import Cost

pytestmark = pytest.mark.usefixtures("one_thread")
CHEAP = Cost(n_views=100, view_s=0.1, n_steps=50, step_s=0.4, n_epochs=10)
"""10 s of views and 20 s of steps; with the training after the trial 50 s."""
DEAR = replace(CHEAP, step_s=1.6)
"""90 s; the trial and a training 170 s."""


@pytest.mark.parametrize(
    ("seconds", "depths", "epochs"),
    [(500, (1, 5), 10), (200, (1, 5), 10), (199, (1,), 10), (50, (1,), 10), (49, (1,), 9), (22, (1,), 3), (21, (), 0)],
)
def test_the_cheapest_depth_comes_first_then_epochs_are_left_out_then_training(seconds, depths, epochs) -> None:
    """Both depths: 30 and 90 s of trials, and the steps of the dearer once more, 80 s."""
    found = plan_training({5: DEAR, 1: CHEAP}, (0.1,), seconds, n_trainings=2)
    assert found == Plan(depths=depths, temperatures=(0.1,) if depths else (), epochs=epochs)


@pytest.mark.parametrize(
    ("seconds", "depths", "temperatures"),
    [(199, (1,), (0.1,)), (200, (1, 5), (0.1,)), (279, (1, 5), (0.1,)), (280, (1, 5), (0.1, 0.2))],
)
def test_another_temperature_comes_after_the_depths_and_costs_no_views(seconds, depths, temperatures) -> None:
    """200 s for both depths, and the steps of the dearer once more, 80 s."""
    found = plan_training({1: CHEAP, 5: DEAR}, (0.1, 0.2), seconds, n_trainings=2)
    assert found == Plan(depths=depths, temperatures=temperatures, epochs=10)


def test_judging_takes_its_time_from_the_epochs() -> None:
    """49 s less 10 s of views and 10 s of judging leave 29 s for the 40 s of two trainings of ten epochs."""
    judged = replace(CHEAP, judging_s=10.0)
    assert plan_training({1: judged}, (0.1,), 49, n_trainings=2).epochs == 7
    assert plan_training({1: judged}, (0.1,), 60, n_trainings=2).epochs == 10


def test_a_training_without_a_trial_costs_its_steps_once() -> None:
    assert plan_training({1: CHEAP}, (0.1,), 30, n_trainings=1).epochs == 10
    assert plan_training({1: CHEAP}, (0.1,), 20, n_trainings=1).epochs == 5
    assert plan_training({1: CHEAP}, (None,), 5, n_trainings=1).depths == ()


def test_what_a_limit_leaves_is_said() -> None:
    plans = [((), 0), ((1,), 4), ((1,), 10), ((1, 5), 10)]
    said = [describe_plan(Plan(depths=d, temperatures=(0.1, 0.2), epochs=e), 2, 10, 2, 2) for d, e in plans]
    one = Plan(depths=(1, 5), temperatures=(0.1,), epochs=10)
    assert "of 2 temperatures of the loss 1 can be tried" in describe_plan(one, 2, 10, 2, 2)
    assert "the first answer stands" in said[0]
    assert "4 epochs are trained instead of 10" in said[1]
    assert "of 2 depths of the network 1 can be tried" in said[2]
    assert "all of the training fits" in said[3]


def test_with_next_to_no_time_the_first_answer_stands_and_the_plan_is_kept(photos, settings, tmp_path: Path) -> None:
    heard: list[str] = []
    limited = replace(settings, max_minutes=1e-6)
    run = run_on(photos, tmp_path / "run", limited, reporter=Reporter(heard.append))
    assert any("training would take longer, so the first answer stands" in line for line in heard)
    assert run.is_finished
    assert not run.metrics
    assert read_plan(Run(run.path)) == Plan(depths=(), temperatures=(), epochs=0)


def test_a_plan_that_was_edited_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(DataError, match=r"plan\.json"):
        read_plan(Run(tmp_path))


def test_a_limit_that_is_no_time_is_refused(settings) -> None:
    with pytest.raises(UsageError, match="max_minutes: found 0"):
        replace(settings, max_minutes=0)
