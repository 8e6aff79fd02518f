"""What the commands print: results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.text import escaped_json, shown

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

if TYPE_CHECKING:
    from shoal.discovery.reporter import Reporter

Progress = Callable[[int, int], None]
"""Called with (done, total) while something long runs."""


@dataclass(slots=True)
class Voice:
    """How much is said on stderr; set anew whenever the command line is read."""

    is_quiet: bool = False
    is_verbose: bool = False
    has_color: bool = True


voice = Voice()


def say(text: str) -> None:
    """Print a line for a person, on stderr, unless nothing is to be said."""
    if not voice.is_quiet:
        typer.echo(shown(text), err=True)


def detail(text: str) -> None:
    """Print a line for someone who wants to know more."""
    if voice.is_verbose:
        say(text)


def complain(text: str) -> None:
    """Print an error, which is said in any case."""
    typer.echo(shown(text), err=True)


def result(text: str, found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the command's result on stdout: `found` as one JSON object, or `text`.

    A program that reads text gets every name as it is; on a terminal control characters are made visible.
    """
    if as_json:
        typer.echo(escaped_json(json.dumps(found, ensure_ascii=False)))
    else:
        typer.echo("\n".join(map(shown, text.split("\n"))) if sys.stdout.isatty() else text)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a bar with the time left on stderr; where stderr is not a terminal, one line and nothing more."""
    # Lines between the bars would tear them, and whoever asks for many lines does not need bars.
    if not sys.stderr.isatty() or voice.is_quiet or voice.is_verbose:
        say(f"{what} …")
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True, no_color=not voice.has_color or None), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def reporter() -> "Reporter":
    """Tell a person on stderr what happens."""
    from shoal.discovery.reporter import Reporter

    return Reporter(say, progress, detail)
