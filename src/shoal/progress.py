"""Progress with the remaining time: a bar on a terminal, otherwise a line about every minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

# Called with (done, total)
Progress = Callable[[int, int], None]

# Seconds between two lines of progress
LINE_S = 60.0

# Seconds until the first line
FIRST_LINE_S = 5.0

# Seconds over which speed is measured
RECENT_S = 60.0


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
def show(
    what: str,
    unit: str,
    log: Callable[[str], None],
    *,
    after: float = 0.0,
    has_bar: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Draw a progress bar on stderr if that is a terminal and `has_bar`; otherwise log a line at
    the start, after a few seconds, and then about every minute.

    `unit` is a plural. `after` are seconds of further work, which are added to the remaining time.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    has_bar = has_bar and sys.stderr is not None and sys.stderr.isatty()
    if not has_bar:
        log(f"{what} …")
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(separator=" of "),
        TextColumn(unit),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
        get_time=clock,
        speed_estimate_period=RECENT_S,
        disable=not has_bar,
    )
    bars.add_task(what, total=None, left="")
    (task,) = bars.tasks
    next_at = clock() + FIRST_LINE_S

    def update(done: int, total: int) -> None:
        nonlocal next_at
        is_further = done > task.completed  # the speed does not count a pause before that
        bars.update(task.id, completed=done, total=total)
        if task.time_remaining is None:  # the speed is not known yet
            return
        left = f"{about(task.time_remaining + after)} left"
        bars.update(task.id, left=left)
        if not has_bar and is_further and done < total and clock() >= next_at:
            counted = f"{done:,} of {total:,} {unit}".rstrip()
            log(f"{what}: {counted}, {left}")
            next_at = clock() + LINE_S

    # Older versions of rich print an empty line at the end of a bar that is not shown.
    with bars if has_bar else nullcontext():
        yield update
