"""How much is trained within the minutes that a user gives.

Which depths and temperatures fit, and how many epochs, is decided once, by what was measured before training, and kept
in plan.json, so that a resumed run does the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.discovery.trained.training_job import MIN_EPOCHS
from shoal.progress import about
from shoal.runs import Run, damaged
from shoal.training.cost import Cost


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is trained: one trial for each depth of the tail, then one for each further temperature of the loss.

    So many epochs each; nothing where there is no depth.
    """

    depths: tuple[int | None, ...]
    temperatures: tuple[float | None, ...]
    epochs: int

    def to_dict(self) -> dict[str, Any]:
        """For plan.json."""
        return {
            "depths": list(self.depths),
            "temperatures": list(self.temperatures),
            "epochs": self.epochs,
        }


def plan_training(
    costs: Mapping[int | None, Cost],
    temperatures: tuple[float | None, ...],
    seconds: float,
    *,
    last_share: Callable[[int], float],
) -> TrainingPlan:
    """As many depths as fit, the cheapest first, then temperatures; where not even one depth fits, fewer epochs of it.

    `costs` are by depth. A training with all labels follows one of the trials: `last_share` says, for trials of so many
    epochs, what part of their steps it takes.
    """
    order = sorted(costs, key=lambda depth: costs[depth].seconds)
    tried = [
        TrainingPlan(
            depths=tuple(order[:n_depths]),
            temperatures=temperatures[:n_temperatures],
            epochs=costs[order[0]].n_epochs,
        )
        for n_depths, n_temperatures in [
            *((n, 1) for n in range(1, len(order) + 1)),
            *((len(order), n) for n in range(2, len(temperatures) + 1)),
        ]
    ]
    fitting = [
        plan for plan in tried if plan_seconds(plan, costs, last_share(plan.epochs)) <= seconds
    ]
    return (
        fitting[-1]
        if fitting
        else _with_fewer_epochs(tried[0], costs[order[0]], seconds, last_share)
    )


def plan_seconds(plan: TrainingPlan, costs: Mapping[int | None, Cost], last_share: float) -> float:
    """What a plan takes; a further temperature looks at the views of its depth, so it costs steps and judging."""
    chosen = [costs[depth] for depth in plan.depths]
    further = (len(plan.temperatures) - 1) * max(cost.steps_s + cost.judging_s for cost in chosen)
    again = last_share * max(cost.steps_s for cost in chosen)
    return sum(cost.seconds for cost in chosen) + further + again


def _with_fewer_epochs(
    plan: TrainingPlan, cost: Cost, seconds: float, last_share: Callable[[int], float]
) -> TrainingPlan:
    """The same with as many epochs as fit; nothing where these are too few to teach anything."""
    left = seconds - cost.n_views * cost.view_s - cost.judging_s
    epoch_s = cost.steps_s / plan.epochs
    fitting = [
        n for n in range(MIN_EPOCHS, plan.epochs + 1) if n * epoch_s * (1 + last_share(n)) <= left
    ]
    return (
        replace(plan, epochs=fitting[-1])
        if fitting
        else TrainingPlan(depths=(), temperatures=(), epochs=0)
    )


def read_plan(run: Run) -> TrainingPlan:
    """The plan that an interrupted run was begun with."""
    plan = run.json("plan")
    try:
        depths = tuple(plan["depths"])
        temperatures = tuple(plan["temperatures"])
        return TrainingPlan(depths=depths, temperatures=temperatures, epochs=int(plan["epochs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(
            run.path / "plan.json", "it holds no depths, temperatures and epochs"
        ) from error


def describe_plan(
    plan: TrainingPlan, minutes: float, n_epochs: int, n_depths: int, n_temperatures: int
) -> str:
    """What the limit leaves of the training, in words."""
    given = f"--max-minutes {minutes:g}"
    if not plan.depths:
        return f"{given}: training would take longer, so the first answer stands"
    if plan.epochs < n_epochs:
        return f"{given}: {plan.epochs} epochs are trained instead of {n_epochs}"
    if len(plan.depths) < n_depths:
        return f"{given}: of {n_depths} depths of the network {len(plan.depths)} can be tried"
    if len(plan.temperatures) < n_temperatures:
        return f"{given}: of {n_temperatures} temperatures of the loss {len(plan.temperatures)} can be tried"
    return f"{given}: all of the training fits, {about(60 * minutes)} at most"
