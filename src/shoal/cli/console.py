"""What commands share: options, and output with results on stdout, everything else on stderr."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.errors import shown

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shoal.discovery.reporter import Reporter
    from shoal.progress import Progress


@dataclass
class Verbosity:
    """How much is printed on stderr, as set by the options of the command line."""

    is_quiet: bool = False
    is_verbose: bool = False
    is_debug: bool = False


verbosity = Verbosity()


def is_first_process() -> bool:
    """Return whether this is the main process, without importing torch."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def log(text: str) -> None:
    """Print a line on stderr in the main process, unless --quiet."""
    if not verbosity.is_quiet and is_first_process():
        typer.echo(shown(text), err=True)


def log_detail(text: str) -> None:
    if verbosity.is_verbose:
        log(text)


def log_error(text: str) -> None:
    """Print an error on stderr, also with --quiet."""
    typer.echo(shown(text), err=True)


def log_skipped(skipped: Mapping[str, str]) -> None:
    for name, reason in skipped.items():
        log(f"note: {name} skipped: {reason}")


def result(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a command on stdout in the main process: `facts` as JSON, or `text`.

    On a terminal, control characters are made visible; other programs get the text unchanged.
    """
    if not is_first_process():
        return
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        if sys.stdout.isatty():
            text = "\n".join(map(shown, text.split("\n")))
        # Otherwise typer removes what looks like a color code in a name.
        typer.echo(text, color=True)


def show_plan(plan: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    """Print what `preview` of a job found, and `lines` about it."""
    log(f"read as {plan['layout']}")
    for note in plan["notes"]:
        log(f"note: {note}")
    if not plan["encoder_is_installed"]:
        log(f"note: the encoder {plan['encoder']} would be downloaded")
    result("\n".join([plan["counted"], *lines]), plan, as_json=as_json)
    if plan["is_finished"]:
        log(
            f"{plan['out']} is finished, so there is nothing left to do; without --dry-run its "
            "result is printed"
        )
    else:
        log(f"nothing was written; without --dry-run, the run is written to {plan['out']}")


def command_line() -> str:
    return shlex.join(["shoal", *sys.argv[1:]])


def progress(what: str, unit: str = "", after: float = 0.0) -> "AbstractContextManager[Progress]":
    """Show progress on stderr: a bar with the remaining time, or a line about every minute."""
    from shoal.progress import show

    # With --verbose, lines would break the bars.
    has_bar = is_first_process() and not (verbosity.is_quiet or verbosity.is_verbose)
    return show(what, unit, log, after=after, has_bar=has_bar)


def reporter() -> "Reporter":
    from shoal.discovery.reporter import Reporter

    return Reporter(log, progress, log_detail)


def open_in_browser(address: str) -> bool:
    """Open an address in a browser, and return whether there is one.

    A separate process is used, because a browser may stay in the foreground and print.
    """
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a text browser would take over the terminal
    subprocess.Popen(
        [sys.executable, "-I", "-m", "webbrowser", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


Images = Annotated[
    Path | None,
    typer.Argument(
        help="Folder or address of images, shards of images, or a table of paths and labels."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="Table of paths and labels (csv, tsv, jsonl, parquet, xlsx): a file or an address; or "
        "folders:2 to label by the folders of the second level."
    ),
]
Labeled = Annotated[
    Path | None, typer.Option(help="Folder with a subfolder per category; needs --unlabeled.")
]
Unlabeled = Annotated[
    Path | None, typer.Option(help="Folder of unlabeled images; needs --labeled.")
]
EncoderName = Annotated[str | None, typer.Option(help="Encoder; see `shoal encoders list`.")]
InputSize = Annotated[int | None, typer.Option(help="Size in pixels to which images are resized.")]
PathColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the paths.")]
AllowMissing = Annotated[
    bool,
    typer.Option(
        "--allow-missing",
        help="Continue if many images of a table do not exist, or if shards are damaged.",
    ),
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the labels.")]
Boxes = Annotated[
    Path | None,
    typer.Option(
        help="Boxes in the images, each of which is an item: JSON of MegaDetector or COCO, a table "
        "(path, x, y, width, height, label), or a folder of YOLO text files."
    ),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        help="Leave out boxes with a lower confidence; by default MegaDetector's typical threshold."
    ),
]
Margin = Annotated[
    float, typer.Option(help="Widen boxes on each side by this share of their size, e.g. 0.1.")
]
WholeImages = Annotated[
    bool, typer.Option("--whole-images", help="Images without a box are items.")
]
NClusters = Annotated[
    str | None,
    typer.Option(
        help="Number of categories, such as 40, or a range for the estimate, such as 30-50; "
        "by default, it is estimated."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N; by default, CUDA if there is a GPU.")
]
Train = Annotated[
    bool | None,
    typer.Option(
        "--train/--no-train",
        help="Train, or use the frozen encoder; by default, train if there are enough labels to "
        "tell whether it helps.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing run.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the input, print what would be done, and stop.")
]
Seed = Annotated[int | None, typer.Option(help="Random seed; by default 0.")]
Protocol = Annotated[
    str | None,
    typer.Option(help="Defaults: shoal, paper, or reference for those of the released code."),
]
FinishedRun = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
Config = Annotated[
    Path | None, typer.Option(help="YAML file of settings, such as the config.yaml of another run.")
]
Epochs = Annotated[int | None, typer.Option(help="Number of training epochs.")]
MovedImages = Annotated[Path | None, typer.Option(help="Folder of the images, if they have moved.")]
ForceFile = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
