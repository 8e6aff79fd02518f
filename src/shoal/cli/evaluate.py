"""`shoal evaluate`: a finished run against the truth."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result, say
from shoal.cli.options import FinishedRun, LabelColumn, PathColumn


def evaluate(
    run: FinishedRun,
    truth: Annotated[
        Path,
        typer.Option(
            help="Table of paths and true classes (csv, tsv, jsonl, parquet), or npy where rows "
            "have no paths."
        ),
    ],
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    json: Json = False,
) -> None:
    """Score a run against the truth, e.g. `shoal evaluate runs/birds --truth truth.csv`.

    Prints All / Known / Novel over the unlabeled images, clusters matched to classes once over all
    of them.
    """
    from shoal.data.readers import read_names
    from shoal.discovery.scoring import score_run, score_to_dict
    from shoal.review.reviewed_run import ReviewedRun
    from shoal.runs import column

    opened = ReviewedRun.open(run)
    names = list(column(opened.assignments, "path"))
    given = read_names(truth, names, path_column=path_column, label_column=label_column)
    score = score_run(opened, given.classes)
    for note in given.notes + score.notes:
        say(f"note: {note}")
    result(score.in_words(), score_to_dict(score), as_json=json)
    say(f"written to {opened.path / 'accuracy.json'}; next: shoal report {run}")
