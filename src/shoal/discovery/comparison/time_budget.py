"""What the trainings of a comparison take together, and how many epochs fit into the minutes that a user gives them.

Every method gets the same share of its epochs: fewer for one alone would compare minutes and not methods. Decided once,
by what was measured before training, and kept in plan.json, so that a resumed comparison does the same.
"""

from collections.abc import Callable, Mapping, Sequence

from shoal.discovery.trained.training_job import MIN_EPOCHS
from shoal.errors import UsageError
from shoal.progress import about
from shoal.runs import Run, damaged
from shoal.training.cost import Cost
from shoal.words import count

SecondsOf = Callable[[Mapping[str, int]], float]
"""What all trainings take together with so many epochs of each method."""

N_HALVINGS = 7
"""How closely the share of epochs is looked for: to one in 128."""


class TooLittleTime(UsageError):
    """Minutes that are not enough for a comparison."""


def plan_epochs(full: Mapping[str, int], seconds_of: SecondsOf, minutes: float) -> dict[str, int]:
    """The epochs of each method: all of them, or the largest share that fits, the same for every method."""
    if seconds_of(full) <= 60 * minutes:
        return dict(full)
    fits = 0.0
    too_long = 1.0
    for _ in range(N_HALVINGS):
        share = (fits + too_long) / 2
        fits, too_long = (
            (share, too_long) if seconds_of(_part(full, share)) <= 60 * minutes else (fits, share)
        )
    epochs = _part(full, fits)
    if any(n < min(MIN_EPOCHS, full[name]) for name, n in epochs.items()):
        raise TooLittleTime(
            f"max_minutes: found {minutes:g}, but these trainings take {about(seconds_of(full))}, and fewer than "
            f"{MIN_EPOCHS} epochs would be left of one; give more minutes, fewer --methods or fewer --draws"
        )
    return epochs


def _part(full: Mapping[str, int], share: float) -> dict[str, int]:
    return {name: int(share * n) for name, n in full.items()}


def read_epochs(run: Run) -> dict[str, int]:
    """The epochs that an interrupted comparison was begun with."""
    try:
        return {str(name): int(n) for name, n in run.json("plan")["epochs"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(run.path / "plan.json", "it holds no epochs") from error


def describe_epochs(epochs: Mapping[str, int], full: Mapping[str, int], minutes: float) -> str:
    """What the limit leaves of the trainings, in words."""
    fewer = [f"{name} {n} of {full[name]} epochs" for name, n in epochs.items() if n < full[name]]
    return f"--max-minutes {minutes:g}: {', '.join(fewer) or 'all of the training fits'}"


def announce(costs: Sequence[Cost], n_views: int, views_s: float, *, n_draws: int = 1) -> str:
    """Say what all trainings take together, and how to end them early."""
    seconds = views_s + sum(cost.steps_s for cost in costs)
    n_steps = sum(cost.n_steps for cost in costs)
    draws = f" ({n_draws} draws of kept labels)" if n_draws > 1 else ""
    return (
        f"{count(len(costs), 'training')}{draws} {'takes' if len(costs) == 1 else 'take'} {about(seconds)} on this "
        f"machine ({count(n_views, 'view')}, once for all of them, and {count(n_steps, 'step')}). Ctrl-C once stops "
        "and compares the methods that are finished, Ctrl-C twice quits; --resume goes on"
    )
