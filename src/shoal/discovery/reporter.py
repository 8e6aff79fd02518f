"""Who is told what happens: the command line prints and draws bars, a library caller reads the log of `shoal`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from shoal.text import shown

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

Listener = Callable[[str], None]
"""Takes a line of text."""

log = logging.getLogger("shoal")

NOTE = "note: "
"""How a line begins that asks for attention."""


def _write_log(text: str) -> None:
    log.log(logging.WARNING if text.startswith(NOTE) else logging.INFO, "%s", shown(text))


def _write_detail(text: str) -> None:
    log.debug("%s", shown(text))


@contextmanager
def _show_nothing(what: str) -> Iterator[Progress]:
    log.debug("%s …", what)
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Reporter:
    """Takes lines for a person, and makes a progress callback for something long that has a name.

    The default logs lines at level INFO, notes at level WARNING and details at level DEBUG to the logger `shoal`, and
    draws nothing: `logging.basicConfig(level="INFO")` shows them in Python.
    """

    say: Listener = _write_log
    progress: Callable[[str], AbstractContextManager[Progress]] = _show_nothing
    detail: Listener = _write_detail
    """Takes what only someone who asks wants to hear, such as a line per epoch."""

    def also_to(self, listener: Listener) -> "Reporter":
        """The same with another listener, who hears every line and every detail."""
        return replace(self, say=_both(self.say, listener), detail=_both(self.detail, listener))


@contextmanager
def _draw_nothing(what: str) -> Iterator[Progress]:
    yield lambda done, total: None


def _hear_nothing(text: str) -> None:
    """Take a line and leave it."""


SILENT = Reporter(say=_hear_nothing, progress=_draw_nothing, detail=_hear_nothing)
"""For processes that help the main one: what they would say, that one says."""


def _both(first: Listener, second: Listener) -> Listener:
    def tell(text: str) -> None:
        first(text)
        second(text)

    return tell
