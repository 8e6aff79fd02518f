"""`shoal export`: a run for other programs."""

import shlex
from pathlib import Path
from typing import Annotated, cast

import typer

from shoal.cli.console import Json, result, say
from shoal.cli.options import FinishedRun, MovedImages
from shoal.words import count


def export(
    run: FinishedRun,
    to: Annotated[
        str,
        typer.Option(help="imagefolder, hf, csv, spreadsheet, labelstudio, fiftyone or projector."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, empty or new.")],
    images: MovedImages = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy images instead of linking them.")
    ] = False,
    given_labels: Annotated[
        str,
        typer.Option(
            help="Where a label and the category disagree: keep the label, or take what was "
            "predicted."
        ),
    ] = "keep",
    json: Json = False,
) -> None:
    """Write a run for another program, e.g. `shoal export runs/birds --to imagefolder --out
    birds-sorted`.

    Images are linked (copied where links cannot be made), never moved or changed. An image that
    came with a label goes where its label says.
    """
    from shoal.discovery.export.export_job import GivenLabels
    from shoal.discovery.export.file_names import Linking
    from shoal.discovery.export.formats import export_run
    from shoal.review.reviewed_run import ReviewedRun

    linking: Linking = "copy" if copy else "link"
    opened = ReviewedRun.open(run)
    has_encoder = "method" in opened.config
    exported = export_run(
        opened,
        to,
        out,
        images=images,
        linking=linking,
        given_labels=cast(GivenLabels, given_labels),
    )
    if exported.n_disagreeing:
        whose = "the label was kept" if given_labels == "keep" else "the category was taken"
        say(
            f"{count(exported.n_disagreeing, 'image')} came with another label than the category "
            f"found: {whose}"
        )
    for step in (*exported.notes, *exported.steps):
        say(step)
    facts = {
        "out": str(exported.folder),
        "format": to,
        "n_disagreeing": exported.n_disagreeing,
        "given_labels": given_labels,
    }
    result(str(exported.folder), facts, as_json=json)
    new = "new/ puts images" if has_encoder else "new.npz puts embeddings"
    say(
        f"next: shoal assign {shlex.quote(str(run))} {new} that come later into the same categories"
    )
