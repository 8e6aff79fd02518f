"""`shoal assign`: new images onto the categories of a finished run."""

import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import Json, detail, reporter, result, say
from shoal.cli.options import AllowMissing, Device, FinishedRun, ForceFile
from shoal.words import count

if TYPE_CHECKING:
    from shoal.data.pixels import Skipped
    from shoal.discovery.assign import Assigner
    from shoal.runs import Assignment

EVERY_S = 2.0
"""Seconds between two looks at a watched folder."""


def assign(
    run: FinishedRun,
    images: Annotated[
        Path,
        typer.Argument(
            help="Folder of images, one image, shards, a table of paths, or embeddings."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV file to write; printed if absent.")] = None,
    outlier_share: Annotated[
        float,
        typer.Option(
            help="Images farther out than all but this share of the run's own are possibly new."
        ),
    ] = 0.01,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and assign images as they arrive in the folder.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(help="Seconds between two looks at a watched folder; 2 if absent.", min=0.05),
    ] = None,
    allow_missing: AllowMissing = False,
    device: Device = None,
    force: ForceFile = False,
    json: Json = False,
) -> None:
    """Put new images into a run's categories, e.g. `shoal assign runs/birds new/ --out new.csv`.

    Categories and their ids never change; -1 means possibly new. Embeddings are npy or npz files,
    and for a run that was made from embeddings parquet and csv files too. A watched folder ends
    with Ctrl-C; its table is continued when the command is given again.
    """
    from shoal.arrays import nan_to_null
    from shoal.discovery.assign import Assigner
    from shoal.discovery.reporter import SILENT
    from shoal.distributed import is_main, processes
    from shoal.errors import UsageError
    from shoal.files import check_writable, write_text
    from shoal.review.reviewed_run import ReviewedRun
    from shoal.runs import Assignment, to_csv

    if watch and not is_main():
        return  # one process watches, alone
    if out is not None and is_main():
        check_writable(out, force=force or watch)
    if every is not None and not watch:
        raise UsageError(
            f"every: found {every:g}, but no folder is watched; give --watch too, or leave out "
            "--every"
        )
    assigner = Assigner(
        ReviewedRun.open(run),
        outlier_share=outlier_share,
        device=device,
        reporter=SILENT if watch else reporter(),
    )
    if watch:
        _watch(assigner, images, out, every=every or EVERY_S, as_json=json, force=force)
        return
    with processes(assigner.device):
        rows, skipped = assigner.assign(images, allow_missing=allow_missing)
    if not is_main():
        return
    _tell_skipped(skipped)
    n_new = sum(row.category_id < 0 for row in rows)
    limit = f"outlier score above {assigner.threshold:.3f}"
    say(f"{count(len(rows), 'image')} assigned, {n_new:,} of them possibly new ({limit})")
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
        "skipped": [{"path": image.name, "reason": image.reason} for image in skipped],
        "assignments": [nan_to_null(asdict(row)) for row in rows],
    }
    result(shown, facts, as_json=json)
    say(f"next: shoal report {shlex.quote(str(run))} --open shows the categories")


def _watch(
    assigner: "Assigner",
    folder: Path,
    out: Path | None,
    *,
    every: float,
    as_json: bool,
    force: bool,
) -> None:
    """Print a row per image as it comes, or a JSON object, or keep a file up to date, until
    Ctrl-C.
    """
    from shoal.arrays import nan_to_null
    from shoal.discovery.assign import Watch
    from shoal.files import write_text
    from shoal.runs import Assignment, locked_file, to_csv

    watched = Watch(assigner, folder)
    _ = assigner.networks  # before the first image comes
    with ExitStack() as held:
        rows: dict[str, Assignment] = {}
        if out is not None:
            held.enter_context(locked_file(out))  # two watches would lose each other's rows
            if out.exists() and not force:
                rows = _rows_of_earlier(out)
        say(f"watching {watched.address or folder}; Ctrl-C ends it")
        if out is None and not as_json:
            typer.echo(to_csv(Assignment, []).rstrip("\n"))
        try:
            while True:
                new, skipped = watched.poll()
                _tell_skipped(skipped)
                rows |= {row.path: row for row in new}
                if out is None:
                    for row in new:
                        line = to_csv(Assignment, [row]).partition("\n")[2].rstrip("\n")
                        result(line, nan_to_null(asdict(row)), as_json=as_json)
                elif new:
                    write_text(out, to_csv(Assignment, rows.values()))
                    detail(f"{count(len(new), 'image')} assigned")
                time.sleep(every)
        except KeyboardInterrupt:
            say(f"{count(len(rows), 'image')} assigned")


def _rows_of_earlier(table: Path) -> "dict[str, Assignment]":
    """The rows of an earlier watch, by path; those of images moved away since stay.

    The remedy for a damaged table is a new one, not a new run.
    """
    from shoal.errors import DataError
    from shoal.runs import Assignment, Damaged, read_rows

    try:
        return {row.path: row for row in read_rows(Assignment, table)}
    except Damaged as error:
        raise DataError(f"{error.what}; give --force to begin it anew, or another --out") from error


def _tell_skipped(skipped: Sequence["Skipped"]) -> None:
    for image in skipped:
        say(f"note: {image.name} left out, {image.reason}")
