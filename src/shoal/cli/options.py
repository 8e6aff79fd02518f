"""Options that several commands share."""

from typing import Annotated

import typer

PathColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the paths.")]
AllowMissing = Annotated[
    bool,
    typer.Option("--allow-missing", help="Go on where many rows of a table name images that are not there."),
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the labels.")]
NClusters = Annotated[
    str | None,
    typer.Option(help="How many categories there are, 40, or a range to estimate it in, 30-50; estimated if absent."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or mps; the best one there is if absent.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a run that is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, say what was found and stop.")]
Seed = Annotated[int | None, typer.Option(help="Decides every draw; 0 if absent.")]
Protocol = Annotated[str | None, typer.Option(help="Whose choices: shoal, paper, or reference (released code).")]
