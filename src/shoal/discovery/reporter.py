"""The reporter says what happens: to a person on stderr, with bars on a terminal, or to the log of
`shoal`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from shoal.progress import Progress, lines, show
from shoal.text import shown

Listener = Callable[[str], None]
"""Takes a line of text."""

ShowProgress = Callable[[str, str], AbstractContextManager[Progress]]
"""Takes the name of something long and the plural of what is counted, and makes a progress
callback."""

log = logging.getLogger("shoal")

NOTE = "note: "
"""How a line begins that asks for attention."""

CLUSTERING = "finding categories"
"""What clustering is called; of many images it takes minutes."""


def _write_log(text: str) -> None:
    log.log(logging.WARNING if text.startswith(NOTE) else logging.INFO, "%s", shown(text))


def _write_detail(text: str) -> None:
    log.debug("%s", shown(text))


@contextmanager
def _log_progress(what: str, unit: str) -> Iterator[Progress]:
    log.debug("%s …", what)
    with lines(what, unit, log.info) as progress:
        yield progress


@dataclass(frozen=True, slots=True)
class Reporter:
    """Takes lines for a person, and makes a progress callback for something long that has a name.

    The default logs lines at level INFO, notes at level WARNING and details at level DEBUG to the
    logger `shoal`: `logging.basicConfig(level="INFO")` shows them in Python.

    Parameters
    ----------
    say
        Takes a line.
    show
        Takes the name of something long and the plural of what is counted; a context manager that
        gives a callback (done, total).
    detail
        Takes what only someone who asks wants to hear, such as a line per epoch.

    Examples
    --------
    >>> import shoal
    >>> lines = []
    >>> reporter = shoal.Reporter(say=lines.append)  # for shoal.discover(…, reporter=reporter)
    >>> reporter.say("419 images")
    >>> lines
    ['419 images']
    """

    say: Listener = _write_log
    show: ShowProgress = _log_progress
    detail: Listener = _write_detail

    def progress(self, what: str, unit: str = "") -> AbstractContextManager[Progress]:
        """A callback (done, total) for something long."""
        return self.show(what, unit)

    def also_to(self, listener: Listener) -> "Reporter":
        """Return a reporter that also sends every line, detail and progress message to
        `listener`."""
        say = _both(self.say, listener)
        detail = _both(self.detail, listener)

        @contextmanager
        def show_both(what: str, unit: str) -> Iterator[Progress]:
            listener(f"{what} …")
            with ExitStack() as both:
                ways = [
                    both.enter_context(way)
                    for way in (self.show(what, unit), lines(what, unit, listener))
                ]

                def update(done: int, total: int) -> None:
                    for way in ways:
                        way(done, total)

                yield update

        return replace(self, say=say, show=show_both, detail=detail)


def stderr_reporter() -> Reporter:
    """Tell whoever calls from Python, on stderr: lines, and a bar on a terminal."""

    def say(text: str) -> None:
        print(shown(text), file=sys.stderr, flush=True)

    return Reporter(say, lambda what, unit: show(what, unit, say))


@contextmanager
def _show_nothing(what: str, unit: str) -> Iterator[Progress]:
    yield lambda done, total: None


def _say_nothing(text: str) -> None:
    """Drop a line."""


SILENT = Reporter(say=_say_nothing, show=_show_nothing, detail=_say_nothing)
"""For processes that help the main one: what they would say, that one says."""


def _both(first: Listener, second: Listener) -> Listener:
    def tell(text: str) -> None:
        first(text)
        second(text)

    return tell
