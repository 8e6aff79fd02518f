"""`shoal export`: a run for other programs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result, say


def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    to: Annotated[str, typer.Option(help="imagefolder, hf, csv, labelstudio, fiftyone or projector.")],
    out: Annotated[Path, typer.Option(help="Folder to write, empty or new.")],
    images: Annotated[Path | None, typer.Option(help="Where the images are now, if they have moved.")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy images instead of linking them.")] = False,
    json: Json = False,
) -> None:
    """Write a run for another program, e.g. `shoal export runs/birds --to imagefolder --out birds-sorted`.

    Images are linked (copied where links cannot be made), never moved or changed.
    """
    from shoal.discovery.export.catalog import export_run
    from shoal.runs import Run

    folder = export_run(Run.open(run), to, out, images=images, linking="copy" if copy else "link")
    result(str(folder), {"out": str(folder), "format": to}, as_json=json)
    say(f"next: shoal assign {shlex.quote(str(run))} new/ puts images that come later into the same categories")
