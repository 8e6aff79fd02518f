"""`shoal evaluate`: score a finished run by true classes."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import FinishedRun, Json, LabelColumn, PathColumn, log, result


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
