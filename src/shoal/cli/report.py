"""`shoal report`: write a run as an HTML page."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import FinishedRun, Json, log, open_in_browser, progress, result


def report(
    run: FinishedRun,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="HTML file to write; by default report.html in the run folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write every figure as SVG and PNG into this folder."),
    ] = None,
    tsne: Annotated[
        bool,
        typer.Option("--tsne", help="Compute a t-SNE map and store it; a stored one is shown."),
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    json: Json = False,
) -> None:
    """Write a run as one self-contained HTML page, e.g. `shoal report runs/birds --open`."""
    from shoal.files import make_folder, write_text
    from shoal.report.figures import write_figures
    from shoal.report.map import tsne_layouts
    from shoal.report.page import render_report
    from shoal.review.reviewed_run import ReviewedRun
    from shoal.runs import Run, locked

    opened = ReviewedRun.of(Run.open(run))
    target = output or run / "report.html"
    make_folder(target.parent)
    if tsne:
        with locked(run), progress("computing the t-SNE map"):
            tsne_layouts(opened)
    with ExitStack() as during:
        if target.parent == run:
            during.enter_context(locked(run))
        write_text(target, render_report(opened))
    files: list[Path] = []
    if figures:
        files, skipped = write_figures(opened, figures)
        for sentence in skipped:
            log(sentence)
    facts = {"report": str(target), "figures": [str(file) for file in files]}
    result("\n".join(map(str, [target, *files])), facts, as_json=json)
    if open_ and open_in_browser(target.resolve().as_uri()):
        log(f"opening {target} in a browser")
    elif open_:
        log(f"note: no browser found; open {target}")
