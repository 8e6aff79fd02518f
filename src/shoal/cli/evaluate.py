"""`shoal evaluate`: a finished run against the truth."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result, say


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    truth: Annotated[Path, typer.Option(help="Table of paths and true classes (csv, tsv, jsonl, parquet).")],
    json: Json = False,
) -> None:
    """Score a run against the truth, e.g. `shoal evaluate runs/birds --truth truth.csv`.

    Prints All / Known / Novel over the unlabeled images, clusters matched to classes once over all of them.
    """
    from shoal.data.readers import read_names
    from shoal.discovery.scoring import score_run, score_to_dict
    from shoal.runs import Run

    opened = Run.open(run)
    score = score_run(opened, read_names(truth, [row.path for row in opened.assignments]))
    for note in score.notes:
        say(f"note: {note}")
    result(score.in_words(), score_to_dict(score), as_json=json)
    say(f"written to {opened.path / 'accuracy.json'}; next: shoal report {run}")
