"""How much training fits into the minutes that a user gives."""

from dataclasses import replace
from pathlib import Path

import pytest

from photo_runs import run_on
from shoal.discovery.discovery_settings import choose_settings, shorter_on_cpu
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained.budget import (
    TrainingPlan,
    describe_plan,
    plan_training,
    read_plan,
)
from shoal.errors import DataError, UsageError
from shoal.methods.registry import load_recipe
from shoal.runs import Run
from shoal.settings import to_dict
from shoal.training.cost import Cost

pytestmark = pytest.mark.usefixtures("one_thread")
CHEAP = Cost(n_views=100, view_s=0.1, n_epochs=10, steps_per_epoch=5, step_s=0.4)
"""10 s of views and 20 s of steps; with the training after the trial 50 s."""
DEAR = replace(CHEAP, step_s=1.6)
"""90 s; the trial and a training 170 s."""


def again(n_epochs: int) -> float:
    """The training after a trial takes as many steps."""
    return 1.0


def nothing(n_epochs: int) -> float:
    """There is no trial."""
    return 0.0


@pytest.mark.parametrize(
    ("seconds", "depths", "epochs"),
    [
        (500, (1, 5), 10),
        (200, (1, 5), 10),
        (199, (1,), 10),
        (50, (1,), 10),
        (49, (1,), 9),
        (22, (1,), 3),
        (21, (), 0),
    ],
)
def test_the_cheapest_depth_comes_first_then_epochs_are_left_out_then_training(
    seconds, depths, epochs
) -> None:
    """Both depths: 30 and 90 s of trials, and the steps of the dearer once more, 80 s."""
    found = plan_training({5: DEAR, 1: CHEAP}, (0.1,), seconds, last_share=again)
    assert found == TrainingPlan(
        depths=depths, temperatures=(0.1,) if depths else (), epochs=epochs
    )


@pytest.mark.parametrize(
    ("seconds", "depths", "temperatures"),
    [(199, (1,), (0.1,)), (200, (1, 5), (0.1,)), (279, (1, 5), (0.1,)), (280, (1, 5), (0.1, 0.2))],
)
def test_another_temperature_comes_after_the_depths_and_costs_no_views(
    seconds, depths, temperatures
) -> None:
    """200 s for both depths, and the steps of the dearer once more, 80 s."""
    found = plan_training({1: CHEAP, 5: DEAR}, (0.1, 0.2), seconds, last_share=again)
    assert found == TrainingPlan(depths=depths, temperatures=temperatures, epochs=10)


def test_judging_takes_its_time_from_the_epochs() -> None:
    """49 s less 10 s of views and 10 s of judging leave 29 s for the 40 s of two trainings of ten epochs."""
    judged = replace(CHEAP, judging_s=10.0)
    assert plan_training({1: judged}, (0.1,), 49, last_share=again).epochs == 7
    assert plan_training({1: judged}, (0.1,), 60, last_share=again).epochs == 10


def test_a_training_without_a_trial_costs_its_steps_once() -> None:
    assert plan_training({1: CHEAP}, (0.1,), 30, last_share=nothing).epochs == 10
    assert plan_training({1: CHEAP}, (0.1,), 20, last_share=nothing).epochs == 5
    assert plan_training({1: CHEAP}, (None,), 5, last_share=nothing).depths == ()


def test_a_training_that_goes_on_from_the_trial_leaves_time_for_more_epochs() -> None:
    """32.4 s less 10 s of views: eight epochs of 2 s and 0.4 of them once more; seven would be trained anew, 28 s."""
    found = plan_training({1: CHEAP}, (0.1,), 32.5, last_share=lambda n: 0.4 if n >= 8 else 1.0)
    assert found.epochs == 8
    assert plan_training({1: CHEAP}, (0.1,), 32.5, last_share=again).epochs == 5


def test_on_a_cpu_the_short_recipe_is_taken_unless_something_is_said_of_training() -> None:
    assert shorter_on_cpu({"n_clusters": 5, "changes": {"loss.temperature": 0.2}}) == {
        "recipe": "cpu"
    }
    said = (
        {"epochs": 3},
        {"recipe": "default"},
        {"config": "a.yaml"},
        {"method": "gcd"},
        {"encoder": "dino-vitb16"},
    )
    for given in (*said, {"protocol": "paper"}, {"changes": {"training.lr": 0.1}}):
        assert shorter_on_cpu(given) == {}, given
    assert choose_settings(recipe="cpu").is_short
    assert not choose_settings(recipe="default").is_short
    assert not choose_settings(
        method="gcd", changes={"training.epochs": 12, "training.lr": 0.02}
    ).is_short
    short, usual = (to_dict(load_recipe(name)) for name in ("cpu", "default"))
    wanted = {
        "epochs": 12,
        "lr": 0.02,
        "min_lr": 0.01,
        "views": {**usual["training"]["views"], "pool": 4},
    }
    assert short == usual | {"training": usual["training"] | wanted}, "nothing else differs"


def test_what_a_limit_leaves_is_said() -> None:
    plans = [((), 0), ((1,), 4), ((1,), 10), ((1, 5), 10)]
    said = [
        describe_plan(TrainingPlan(depths=d, temperatures=(0.1, 0.2), epochs=e), 2, 10, 2, 2)
        for d, e in plans
    ]
    one = TrainingPlan(depths=(1, 5), temperatures=(0.1,), epochs=10)
    assert "of 2 temperatures of the loss 1 can be tried" in describe_plan(one, 2, 10, 2, 2)
    assert "the first answer stands" in said[0]
    assert "4 epochs are trained instead of 10" in said[1]
    assert "of 2 depths of the network 1 can be tried" in said[2]
    assert "all of the training fits" in said[3]


def test_with_next_to_no_time_the_first_answer_stands_and_the_plan_is_kept(
    photos, settings, tmp_path: Path
) -> None:
    heard: list[str] = []
    limited = replace(settings, max_minutes=1e-6)
    run = run_on(photos, tmp_path / "run", limited, reporter=Reporter(heard.append))
    assert any("training would take longer, so the first answer stands" in line for line in heard)
    assert run.is_finished
    assert not run.metrics
    assert read_plan(Run(run.path)) == TrainingPlan(depths=(), temperatures=(), epochs=0)


def test_a_plan_that_was_edited_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(DataError, match=r"plan\.json"):
        read_plan(Run(tmp_path))


def test_a_limit_that_is_no_time_is_refused(settings) -> None:
    with pytest.raises(UsageError, match="max_minutes: found 0"):
        replace(settings, max_minutes=0)
