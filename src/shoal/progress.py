"""Progress of something long: a bar on a terminal, a line about every minute elsewhere, and how long it will take."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

LINE_S = 60.0
"""Seconds between two lines."""

FIRST_LINE_S = 5.0
"""Seconds until the first one."""

RECENT_S = 60.0
"""Seconds over which speed is measured, or half of the time since the beginning where that is longer."""

PRIOR_S = 2.0
"""Seconds of measuring that count as much as what was expected; more of them count for more."""


def count_after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Count what comes after `before` others, of `total` in all."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of something long before it begins."""

    unit: str = ""
    """The plural name of what is counted."""
    unit_s: float = 0.0
    """Seconds expected for one; 0: nothing is expected."""
    then_s: float = 0.0
    """Seconds expected for what follows and belongs to it."""


class Pace:
    """How fast something goes, measured, and how long it will still take."""

    def __init__(
        self, outlook: Outlook | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.outlook = outlook or Outlook()
        self.clock = clock
        self.began = clock()
        self.done = self.total = 0
        self._recent: deque[tuple[float, int]] = deque()

    def update(self, done: int, total: int) -> None:
        """Take note of how much is done; the first time is where measuring begins, after whatever starts slowly."""
        now = self.clock()
        self.done = done
        self.total = total
        self._recent.append((now, done))
        since = now - max(RECENT_S, (now - self.began) / 2)
        while len(self._recent) > 2 and self._recent[1][0] <= since:
            self._recent.popleft()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all of it is done, and what follows; None where nothing is measured or expected yet.

        What follows takes as many times longer than expected as this does: others use the machine too.
        """
        n_left = self.total - self.done
        unit_s = self._unit_s
        expected = self.outlook.unit_s
        then_s = self.outlook.then_s * (unit_s / expected if unit_s and expected else 1.0)
        if not n_left:
            return then_s
        return None if unit_s is None else n_left * unit_s + then_s

    @property
    def _unit_s(self) -> float | None:
        """Seconds for one, by what is measured and expected; None where neither says any."""
        if not self._recent:
            return None
        (first, before) = self._recent[0]
        (last, done) = self._recent[-1]
        seconds = last - first
        n_done = done - before
        expected = self.outlook.unit_s
        if not n_done or not seconds:
            return expected or None
        measured = seconds / n_done
        if not expected:
            return measured
        # Between the two as a ratio: an expectation ten times too low must not hide it for ten times as long.
        share = seconds / (seconds + PRIOR_S)
        return float(expected ** (1 - share) * measured**share)

    def in_words(self) -> str:
        """'1,024 of 10,000 views, about 4 minutes left', 'in all' where something follows."""
        counted = f"{self.done:,} of {self.total:,} {self.outlook.unit}".rstrip()
        left = self.seconds_left
        in_all = " in all" if self.outlook.then_s else ""
        return counted if left is None else f"{counted}, {about(left)} left{in_all}"


def about(seconds: float) -> str:
    """A span of time as one would say it: 'about 40 seconds', 'about 4 minutes', 'about 2 h 10 min'."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds, -1 if seconds >= 20 else 0):.0f} seconds"
    minutes = round(seconds / 60)
    return (
        f"about {minutes} minutes"
        if minutes < 90
        else f"about {minutes // 60} h {minutes % 60} min"
    )


@contextmanager
def lines(
    what: str,
    outlook: Outlook,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Tell a line after a few seconds, and then about every minute."""
    pace = Pace(outlook, clock)
    next_at = pace.began + FIRST_LINE_S

    def update(done: int, total: int) -> None:
        nonlocal next_at
        pace.update(done, total)
        # The first line waits for a speed to tell.
        if clock() >= next_at and done < total and pace.seconds_left is not None:
            tell(f"{what}: {pace.in_words()}")
            next_at = clock() + LINE_S

    yield update


@contextmanager
def bar(what: str, outlook: Outlook, *, has_color: bool = True) -> Iterator[Progress]:
    """Draw a bar on stderr, with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    pace = Pace(outlook)
    with Bars(
        *columns, console=Console(stderr=True, no_color=not has_color or None), transient=True
    ) as bars:
        task = bars.add_task(what, total=None, left="")

        def update(done: int, total: int) -> None:
            pace.update(done, total)
            bars.update(task, completed=done, total=total, left=pace.in_words())

        yield update


@contextmanager
def show(
    what: str,
    outlook: Outlook,
    say: Callable[[str], None],
    *,
    has_bar: bool = True,
    has_color: bool = True,
) -> Iterator[Progress]:
    """Draw a bar where stderr is a terminal, unless told not to; else say that something begins, and how it goes on."""
    if has_bar and is_terminal():
        with bar(what, outlook, has_color=has_color) as progress:
            yield progress
        return
    say(f"{what} …")
    with lines(what, outlook, say) as progress:
        yield progress


def is_terminal() -> bool:
    """Whether a bar can be drawn on stderr."""
    return sys.stderr is not None and sys.stderr.isatty()
