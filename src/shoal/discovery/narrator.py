"""Who is told what happens: the command line prints and draws bars, a library caller hears nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


def _say_nothing(text: str) -> None:
    """Hear a line and drop it."""


@contextmanager
def _show_nothing(what: str) -> Iterator[Progress]:
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Narrator:
    """Takes lines for a person, and makes a progress callback for something long that has a name."""

    say: Callable[[str], None] = _say_nothing
    bar: Callable[[str], AbstractContextManager[Progress]] = _show_nothing
