"""How much training fits into the minutes that a user gives it: which depths are tried, and how many epochs.

Decided once, by what was measured before training, and kept in plan.json, so that a resumed run does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.progress import about
from shoal.runs import Run, damaged
from shoal.training.cost import Cost

MIN_EPOCHS = 3
"""Fewer epochs teach nothing: then nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained: one trial for each depth of the tail, so many epochs each; nothing where there is no depth."""

    depths: tuple[int | None, ...]
    epochs: int

    def to_dict(self) -> dict[str, Any]:
        """For plan.json."""
        return {"depths": list(self.depths), "epochs": self.epochs}


def plan_training(costs: Mapping[int | None, Cost], seconds: float, *, n_trainings: int) -> Plan:
    """As many depths as fit, the cheapest first; where not even that one fits, fewer epochs of it.

    `costs` are by depth. With `n_trainings` 2 one of the trials is followed by a training with all labels, which takes
    its steps once more.
    """
    order = sorted(costs, key=lambda depth: costs[depth].seconds)
    kept: list[int | None] = []
    n_epochs, spent = costs[order[0]].n_epochs, 0.0
    for depth in order:
        spent += costs[depth].seconds
        again = max((n_trainings - 1) * costs[one].steps_s for one in [*kept, depth])
        if spent + again > seconds:
            break
        kept.append(depth)
    if kept:
        return Plan(depths=tuple(kept), epochs=n_epochs)
    cheapest = costs[order[0]]
    left = seconds - cheapest.n_views * cheapest.view_s
    fit = int(n_epochs * left / (n_trainings * cheapest.steps_s)) if left > 0 else 0
    return Plan(depths=(order[0],), epochs=fit) if fit >= MIN_EPOCHS else Plan(depths=(), epochs=0)


def read_plan(run: Run) -> Plan:
    """The plan that an interrupted run was begun with."""
    found = run.json("plan")
    try:
        return Plan(depths=tuple(found["depths"]), epochs=int(found["epochs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(run.path / "plan.json", "it holds no depths and epochs") from error


def describe_plan(plan: Plan, minutes: float, n_epochs: int, n_depths: int) -> str:
    """What the limit leaves of the training, in words."""
    given = f"--max-minutes {minutes:g}"
    if not plan.depths:
        return f"{given}: training would take longer, so the first answer stands"
    if plan.epochs < n_epochs:
        return f"{given}: {plan.epochs} epochs are trained instead of {n_epochs}"
    if len(plan.depths) < n_depths:
        return f"{given}: of {n_depths} depths of the network {len(plan.depths)} can be tried"
    return f"{given}: all of the training fits, about {about(60 * minutes)} at most"
