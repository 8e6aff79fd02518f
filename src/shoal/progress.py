"""Progress with the remaining time: a bar on a terminal, otherwise a line about every minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

LINE_S = 60.0
"""Seconds between two lines of progress."""

FIRST_LINE_S = 5.0
"""Seconds until the first line."""

RECENT_S = 60.0
"""Seconds over which speed is measured."""


def count_after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a progress callback that adds `before` and replaces the total."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def about(seconds: float) -> str:
    """Return a rounded time span: 'a few seconds', 'about 40 seconds', 'about 130 minutes'."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} seconds"
    if seconds < 600:
        return f"about {round(seconds / 30) / 2:g} minutes"
    return f"about {seconds / 60:.0f} minutes"


@contextmanager
def lines(
    what: str,
    unit: str,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    *,
    after: float = 0.0,
) -> Iterator[Progress]:
    """Log a line after a few seconds, and then about every minute; `unit` is a plural.

    `after` are seconds of further work, which are added to the remaining time.
    """
    from rich.progress import Progress as Bars

    bars = Bars(disable=True, get_time=clock, speed_estimate_period=RECENT_S)
    bars.add_task(what, total=None)
    (task,) = bars.tasks
    next_at = clock() + FIRST_LINE_S

    def update(done: int, total: int) -> None:
        nonlocal next_at
        is_further = done > task.completed  # the speed does not count a pause before that
        bars.update(task.id, completed=done, total=total)
        left = task.time_remaining
        # The first line waits until the speed is known.
        if clock() >= next_at and is_further and done < total and left is not None:
            counted = f"{done:,} of {total:,} {unit}".rstrip()
            log(f"{what}: {counted}, {about(left + after)} left")
            next_at = clock() + LINE_S

    yield update


@contextmanager
def show(
    what: str,
    unit: str,
    log: Callable[[str], None],
    *,
    after: float = 0.0,
    has_bar: bool = True,
) -> Iterator[Progress]:
    """Draw a progress bar on stderr if that is a terminal and `has_bar`; otherwise log `lines`."""
    if not has_bar or sys.stderr is None or not sys.stderr.isatty():
        log(f"{what} …")
        with lines(what, unit, log, after=after) as progress:
            yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(separator=" of "),
        TextColumn(unit),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=RECENT_S,
    ) as bars:
        bars.add_task(what, total=None, left="")
        (task,) = bars.tasks

        def update(done: int, total: int) -> None:
            bars.update(task.id, completed=done, total=total)
            left = task.time_remaining
            if left is not None:
                bars.update(task.id, left=f"{about(left + after)} left")

        yield update
