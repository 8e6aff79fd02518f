"""`shoal assign`: assign new images to the categories of a finished run."""

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
    Margin,
    MinConfidence,
    WholeImages,
    log,
    log_detail,
    log_skipped,
    reporter,
    result,
)
from shoal.errors import UsageError, count

if TYPE_CHECKING:
    from shoal.discovery.assign import Assigner

# Seconds between two checks of a watched folder
POLL_S = 2.0


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
