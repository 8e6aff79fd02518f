"""`shoal report`: see what a run found."""

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, open_in_browser, progress, result, say
from shoal.cli.options import FinishedRun


def report(
    run: FinishedRun,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="HTML file to write; report.html in the run folder if absent."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write every figure into this folder, as SVG and PNG."),
    ] = None,
    tsne: Annotated[
        bool | None,
        typer.Option(
            "--tsne/--no-tsne",
            help="Draw a map by t-SNE, once, and keep it; one that was drawn is shown if absent.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    json: Json = False,
) -> None:
    """Write a run as one HTML page that needs nothing else, e.g. `shoal report runs/birds
    --open`.
    """
    from shoal.files import make_folder, write_text
    from shoal.report.figures.writing import write_figures
    from shoal.report.page import render_report
    from shoal.review.reviewed_run import ReviewedRun
    from shoal.runs import Run, locked

    opened = ReviewedRun.of(Run.open(run))
    target = output or run / "report.html"
    make_folder(target.parent)
    with ExitStack() as during:
        if tsne or target.parent == run:
            during.enter_context(locked(run))
        bar = None
        if tsne:
            bar = during.enter_context(progress("drawing the map by t-SNE"))
        write_text(target, render_report(opened, tsne=tsne, progress=bar))
    files: list[Path] = []
    if figures:
        files, left_out = write_figures(opened, figures)
        for sentence in left_out:
            say(sentence)
    facts = {"report": str(target), "figures": [str(file) for file in files]}
    result("\n".join(map(str, [target, *files])), facts, as_json=json)
    if not open_:
        say(f"next: shoal report {shlex.quote(str(run))} --open shows it in a browser")
    elif open_in_browser(target.resolve().as_uri()):
        say(f"it opens in a browser; if it does not, open {target}")
    else:
        say(f"note: no browser was found here; open {target} in one")
