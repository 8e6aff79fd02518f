"""`shoal export`: export a run for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import FinishedRun, Json, MovedImages, log, result
from shoal.errors import count


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
