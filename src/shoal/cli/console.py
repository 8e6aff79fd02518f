"""What the commands show: results on stdout, everything else on stderr, a page in a browser
where there is one.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.text import escaped_json, shown

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shoal.discovery.reporter import Reporter
    from shoal.progress import Progress


@dataclass(slots=True)
class Verbosity:
    """How much is said on stderr; set anew whenever the command line is read."""

    is_quiet: bool = False
    is_verbose: bool = False
    has_color: bool = True


verbosity = Verbosity()


def is_first_process() -> bool:
    """Whether this process is the one that speaks, of those that torchrun has started.

    Torch is not asked.
    """
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print a line for a person, on stderr, unless nothing is to be said, or another process
    says it.
    """
    if not verbosity.is_quiet and is_first_process():
        typer.echo(shown(text), err=True)


def detail(text: str) -> None:
    """Print a line for someone who wants to know more."""
    if verbosity.is_verbose:
        say(text)


def complain(text: str) -> None:
    """Print an error, which is said in any case."""
    typer.echo(shown(text), err=True)


def result(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the command's result on stdout: `facts` as one JSON object, or `text`.

    A program that reads text gets every name as it is; on a terminal control characters are made
    visible. Of several processes one prints it.
    """
    if not is_first_process():
        return
    if as_json:
        typer.echo(escaped_json(json.dumps(facts, ensure_ascii=False)))
    else:
        # Told of colors, typer does not take for one, and remove, what only looks like it in a
        # name.
        typer.echo(
            "\n".join(map(shown, text.split("\n"))) if sys.stdout.isatty() else text, color=True
        )


def command_line() -> str:
    """The command as it was given, for the run's record."""
    return shlex.join(["shoal", *sys.argv[1:]])


def progress(what: str, unit: str = "") -> "AbstractContextManager[Progress]":
    """Show on stderr how something long goes on: a bar with the time left, or a line about every
    minute.
    """
    from shoal.progress import show

    # Lines between the bars would tear them, and whoever asks for many lines does not need bars.
    has_bar = is_first_process() and not (verbosity.is_quiet or verbosity.is_verbose)
    return show(what, unit, say, has_bar=has_bar, has_color=verbosity.has_color)


def reporter() -> "Reporter":
    """Tell a person on stderr what happens."""
    from shoal.discovery.reporter import Reporter

    return Reporter(say, progress, detail)


def open_in_browser(address: str) -> bool:
    """Open an address in a browser.

    False where there is none, such as on a machine without a screen.

    In a process of its own: a browser that is started may stay in the foreground, and print.
    """
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a browser of text would take over the terminal
    opens = "import sys, webbrowser; webbrowser.open(sys.stdin.read())"
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", opens],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        assert process.stdin is not None
        with process.stdin as given:  # other accounts can read a command, and not this
            given.write(address)
    except OSError:
        return False
    return True
