"""The reporter: messages and progress bars on stderr, or lines for the logger `shoal`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from shoal.allocator import peak_memory, return_freed_memory
from shoal.distributed import is_main
from shoal.errors import name_arguments, shown
from shoal.progress import Progress, show

# Takes a line of text
Listener = Callable[[str], None]

# Takes the name of a long step, the plural of what it counts, and the seconds of the steps that
# follow it, which belong to the remaining time; yields a progress callback
ShowProgress = Callable[[str, str, float], AbstractContextManager[Progress]]

log = logging.getLogger("shoal")

# Names of long steps in progress bars
CLUSTERING = "finding categories"
EMBEDDING = "embedding images"


def _write_log(text: str) -> None:
    level = logging.WARNING if text.startswith("note: ") else logging.INFO
    log.log(level, "%s", shown(name_arguments(text)))


def _write_detail(text: str) -> None:
    log.debug("%s", shown(text))


def _log_progress(what: str, unit: str, after: float) -> AbstractContextManager[Progress]:
    return show(what, unit, log.info, after=after, has_bar=False)


@dataclass(frozen=True)
class Reporter:
    """Receives the messages and the progress of a job.

    The default logs lines at level INFO, notes at level WARNING and details at level DEBUG to the
    logger `shoal`: `logging.basicConfig(level="INFO")` shows them in Python.

    Parameters
    ----------
    report
        Takes a line.
    show
        Takes the name of a long step, the plural of what it counts, and the seconds of the steps
        that follow it (0 if unknown); returns a context manager that yields a callback (done,
        total).
    detail
        Takes a line of detail, such as one per epoch.

    Examples
    --------
    >>> import shoal
    >>> lines = []
    >>> reporter = shoal.Reporter(report=lines.append)  # for shoal.discover(…, reporter=reporter)
    >>> reporter.report("419 images")
    >>> lines
    ['419 images']
    """

    report: Listener = _write_log
    show: ShowProgress = _log_progress
    detail: Listener = _write_detail

    def progress(
        self, what: str, unit: str = "", after: float = 0.0
    ) -> AbstractContextManager[Progress]:
        """Return a context manager that yields a callback (done, total) for a long step."""
        return self.show(what, unit, after)

    def also_to(self, listener: Listener) -> "Reporter":
        """Return a reporter that also sends every line, detail and name of a step to `listener`."""
        report = _both(self.report, listener)
        detail = _both(self.detail, listener)

        @contextmanager
        def show_both(what: str, unit: str, after: float) -> Iterator[Progress]:
            listener(f"{what} …")
            with self.show(what, unit, after) as progress:
                yield progress
            return_freed_memory()
            if peak := peak_memory():
                listener(f"{what}: peak memory {peak / 1e9:.2f} GB so far")

        return replace(self, report=report, show=show_both, detail=detail)


# Writes to the logger `shoal`
LOGGED = Reporter()


def default_reporter(*, verbose: bool) -> Reporter:
    """Return a reporter that prints to stderr, with progress bars on a terminal, or one that logs
    if not `verbose` or in another than the main process."""
    if not verbose or not is_main():
        return LOGGED

    def print_line(text: str) -> None:
        print(shown(name_arguments(text)), file=sys.stderr, flush=True)

    def show_bar(what: str, unit: str, after: float) -> AbstractContextManager[Progress]:
        return show(what, unit, print_line, after=after)

    return Reporter(print_line, show_bar)


@contextmanager
def _show_nothing(what: str, unit: str, after: float) -> Iterator[Progress]:
    yield lambda done, total: None


def _ignore(text: str) -> None:
    """Ignore a line."""


# For processes other than the main one: they would repeat its messages
SILENT = Reporter(report=_ignore, show=_show_nothing, detail=_ignore)


def _both(first: Listener, second: Listener) -> Listener:
    def send(text: str) -> None:
        first(text)
        second(text)

    return send
