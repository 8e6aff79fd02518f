"""Commands on a finished run: `shoal report` writes it as an HTML page, `shoal evaluate` scores it
by true classes, `shoal export` exports it for other programs."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import (
    FinishedRun,
    Json,
    LabelColumn,
    MovedImages,
    PathColumn,
    log,
    open_in_browser,
    progress,
    result,
)
from shoal.errors import count


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


def evaluate(
    run: FinishedRun,
    truth: Annotated[
        Path,
        typer.Option(
            help="Table of paths and true classes (csv, tsv, jsonl, parquet, xlsx), or npy of "
            "classes for a run of embeddings without paths."
        ),
    ],
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    json: Json = False,
) -> None:
    """Score a run by true classes, e.g. `shoal evaluate runs/birds --truth truth.csv`.

    Prints All / Known / Novel accuracy on the unlabeled images, with one Hungarian matching of
    clusters to classes over all of them.
    """
    from shoal.discovery.discovered_run import evaluate as score_by
    from shoal.discovery.discovered_run import score_to_dict
    from shoal.review.reviewed_run import ReviewedRun

    opened = ReviewedRun.open(run)
    score = score_by(opened, truth, path_column=path_column, label_column=label_column)
    for note in score.notes:
        log(f"note: {note}")
    result(score.in_words(), score_to_dict(score), as_json=json)
    log(f"written to {opened.path / 'accuracy.json'}")


def export(
    run: FinishedRun,
    to: Annotated[
        str,
        typer.Option(
            help="imagefolder, hf, csv, spreadsheet, labelstudio, fiftyone, coco, yolo, projector, "
            "newick or dendrogram."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, empty or new.")],
    images: MovedImages = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy images instead of linking them.")
    ] = False,
    json: Json = False,
) -> None:
    """Export a run for another program, e.g. `shoal export runs/birds --to imagefolder --out
    birds-sorted`.

    Images are linked, or copied if the file system has no links; they are never moved or changed.
    Labeled images are exported with their label.
    """
    from shoal.discovery.export.formats import export_run
    from shoal.review.reviewed_run import ReviewedRun

    opened = ReviewedRun.open(run)
    exported = export_run(
        opened,
        to,
        out,
        images=images,
        copy=copy,
    )
    if exported.n_disagreeing:
        images_in_words = count(exported.n_disagreeing, "labeled image")
        log(f"{images_in_words} in another category, exported with the label")
    for note in exported.notes:
        log(note)
    facts = {
        "out": str(exported.folder),
        "format": to,
        "n_disagreeing": exported.n_disagreeing,
    }
    result(str(exported.folder), facts, as_json=json)
