"""`shoal assign`: new images onto the categories of a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result, say
from shoal.cli.options import Device


def assign(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    images: Annotated[Path, typer.Argument(help="Folder of images, one image, a table of paths, or embeddings.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write; printed if absent.")] = None,
    outlier_share: Annotated[
        float, typer.Option(help="Images farther out than all but this share of the run's own are possibly new.")
    ] = 0.01,
    device: Device = None,
    json: Json = False,
) -> None:
    """Put new images into a run's categories, e.g. `shoal assign runs/birds new/ --out new.csv`.

    Categories and their ids never change; -1 means possibly new. Embeddings are npy or npz files, and for a run that
    was made from embeddings parquet and csv files too.
    """
    from dataclasses import asdict

    from shoal.discovery.assign import Assigner, assign_file
    from shoal.files import write_text
    from shoal.runs import Assignment, Run, to_csv

    assigner = Assigner(Run.open(run), outlier_share=outlier_share, device=device)
    rows, skipped = assign_file(assigner, images)
    for image in skipped:
        say(f"note: {image.name} left out, {image.reason}")
    n_new = sum(row.category_id < 0 for row in rows)
    say(f"{len(rows):,} images assigned, {n_new:,} of them possibly new (outlier score above {assigner.threshold:.3f})")
    table = to_csv(Assignment, rows)
    if out is not None:
        write_text(out, table)
    found = {"n_images": len(rows), "n_possibly_new": n_new, "threshold": assigner.threshold, "out": out and str(out)}
    listed = [{name: None if value != value else value for name, value in asdict(row).items()} for row in rows]
    result(str(out) if out else table.rstrip("\n"), {**found, "assignments": listed}, as_json=json)
