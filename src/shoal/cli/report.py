"""`shoal report`: see what a run found."""

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, open_in_browser, progress, result, say


def report(
    run: Annotated[
        Path, typer.Argument(help="The folder a run was written to.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The HTML file to write.",
            show_default="report.html in the run folder",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            help="Also write every figure into this folder, as SVG and PNG.",
            show_default=False,
        ),
    ] = None,
    tsne: Annotated[
        bool | None,
        typer.Option(
            "--tsne/--no-tsne",
            help="Draw a map by t-SNE, once, and keep it with the run.",
            show_default="shown where it was drawn before",
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

    snapshot = ReviewedRun.of(Run.open(run))
    target = output or run / "report.html"
    make_folder(target.parent)
    with locked(run) if tsne or target.parent == run else nullcontext():
        if tsne:
            with progress("drawing the map by t-SNE") as bar:
                text = render_report(snapshot, tsne=True, progress=bar)
        else:
            text = render_report(snapshot, tsne=tsne)
        write_text(target, text)
    files, left_out = write_figures(snapshot, figures) if figures else ([], [])
    for sentence in left_out:
        say(sentence)
    written = [target, *files]
    result(
        "\n".join(map(str, written)),
        {"report": str(target), "figures": [str(f) for f in files]},
        as_json=json,
    )
    if open_:
        opens = open_in_browser(target.resolve().as_uri())
        said = f"it opens in a browser; if it does not, open {target}"
        say(said if opens else f"note: no browser was found here; open {target} in one")
    else:
        say(f"next: shoal report {shlex.quote(str(run))} --open shows it in a browser")
