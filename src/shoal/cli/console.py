"""What the commands print: results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

if TYPE_CHECKING:
    from shoal.discovery.narrator import Narrator

Progress = Callable[[int, int], None]
"""Called with (done, total) while something long runs."""


def say(text: str) -> None:
    """Print a line for a person, on stderr."""
    typer.echo(text, err=True)


def result(text: str, found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the command's result on stdout: `found` as one JSON object, or `text`."""
    typer.echo(json.dumps(found, ensure_ascii=False) if as_json else text)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a bar with the time left on stderr; where stderr is not a terminal, one line and nothing more."""
    if not sys.stderr.isatty():
        say(f"{what} …")
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def narrator() -> "Narrator":
    """Tell a person on stderr what happens."""
    from shoal.discovery.narrator import Narrator

    return Narrator(say, progress)
