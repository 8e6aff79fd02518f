"""Commands on a finished run: `shoal report` writes it as an HTML page, `shoal evaluate` scores it
by true classes, `shoal export` exports it for other programs, `shoal assign` assigns new images."""

import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import (
    AllowMissing,
    Boxes,
    Device,
    FinishedRun,
    ForceFile,
    Json,
    LabelColumn,
    Margin,
    MinConfidence,
    MovedImages,
    PathColumn,
    WholeImages,
    log,
    log_detail,
    log_skipped,
    open_in_browser,
    progress,
    reporter,
    result,
)
from shoal.errors import UsageError, count

if TYPE_CHECKING:
    from shoal.discovery.assign import Assigner

# Seconds between two checks of a watched folder
POLL_S = 2.0


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
        log(
            f"{count(exported.n_disagreeing, 'labeled image')} in another category, exported with "
            "the label"
        )
    for note in exported.notes:
        log(note)
    facts = {
        "out": str(exported.folder),
        "format": to,
        "n_disagreeing": exported.n_disagreeing,
    }
    result(str(exported.folder), facts, as_json=json)


def assign(
    run: FinishedRun,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images, one image, shards, a table of paths, or embeddings."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; by default, it is printed.")
    ] = None,
    outlier_share: Annotated[
        float,
        typer.Option(
            help="Images with a higher outlier score than all but this share of the run's images "
            "get the category id -1: their category may be new."
        ),
    ] = 0.01,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Keep running, and assign images as they arrive in the folder."
        ),
    ] = False,
    allow_missing: AllowMissing = False,
    boxes: Boxes = None,
    min_confidence: MinConfidence = None,
    margin: Margin = 0.0,
    whole_images: WholeImages = False,
    device: Device = None,
    force: ForceFile = False,
    json: Json = False,
) -> None:
    """Assign new images to a run's categories, e.g. `shoal assign runs/birds new/ --out new.csv`.

    An image gets the category id -1 if its category may be new; existing categories never change.
    Embeddings are npy or npz files; for a run made from embeddings also parquet files.
    Ctrl-C stops --watch; the same command continues its table.
    """
    from shoal.arrays import nan_to_null
    from shoal.data.readers.boxes import BoxOptions
    from shoal.discovery.assign import Assigner
    from shoal.discovery.reporter import SILENT
    from shoal.distributed import is_main, processes
    from shoal.files import check_writable, write_text
    from shoal.review.reviewed_run import ReviewedRun
    from shoal.runs import Assignment, to_csv

    box_options = BoxOptions(
        source=boxes, min_confidence=min_confidence, margin=margin, whole_images=whole_images
    )
    if watch and boxes is not None:
        raise UsageError("--watch and --boxes: found both, expected one of them")
    if watch and not is_main():
        return  # only one process watches
    if out is not None and is_main():
        check_writable(out, force=force or watch)
    assigner = Assigner(
        ReviewedRun.open(run),
        outlier_share=outlier_share,
        device=device,
        reporter=SILENT if watch else reporter(),
    )
    if watch:
        _watch(assigner, images, out, as_json=json, force=force)
        return
    with processes(assigner.device):
        rows, skipped = assigner.assign(images, allow_missing=allow_missing, boxes=box_options)
    if not is_main():
        return
    log_skipped(skipped)
    n_new = sum(row.category_id < 0 for row in rows)
    limit = f"outlier score above {assigner.threshold:.3f}"
    log(f"assigned {count(len(rows), 'image')}, {n_new:,} of them possibly new ({limit})")
    table = to_csv(Assignment, rows)
    shown = table.rstrip("\n")
    if out is not None:
        write_text(out, table)
        shown = str(out)
    facts = {
        "n_images": len(rows),
        "n_possibly_new": n_new,
        "threshold": assigner.threshold,
        "out": out and str(out),
        "skipped": [{"path": name, "reason": reason} for name, reason in skipped.items()],
        "assignments": [nan_to_null(asdict(row)) for row in rows],
    }
    result(shown, facts, as_json=json)


def _watch(
    assigner: "Assigner",
    folder: Path,
    out: Path | None,
    *,
    as_json: bool,
    force: bool,
) -> None:
    """Print a row or a JSON object per new image, or update a file, until Ctrl-C."""
    from shoal.arrays import nan_to_null
    from shoal.discovery.assign import Watch
    from shoal.files import write_text
    from shoal.runs import Assignment, locked_file, read_rows, to_csv

    watched = Watch(assigner, folder)
    _ = assigner.networks  # loaded before the first image arrives
    with ExitStack() as stack:
        rows: dict[str, Assignment] = {}
        if out is not None:
            stack.enter_context(locked_file(out))  # two processes would overwrite each other's rows
            if out.exists() and not force:
                # including those of images that are gone
                rows = {row.path: row for row in read_rows(Assignment, out)}
        log(f"watching {folder}; Ctrl-C stops")
        if out is None and not as_json:
            typer.echo(to_csv(Assignment, []).rstrip("\n"))
        try:
            while True:
                new, skipped = watched.poll()
                log_skipped(skipped)
                rows |= {row.path: row for row in new}
                if out is None:
                    for row in new:
                        line = to_csv(Assignment, [row]).partition("\n")[2].rstrip("\n")
                        result(line, nan_to_null(asdict(row)), as_json=as_json)
                elif new:
                    write_text(out, to_csv(Assignment, rows.values()))
                    log_detail(f"assigned {count(len(new), 'image')}")
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            log(f"assigned {count(len(rows), 'image')}")
