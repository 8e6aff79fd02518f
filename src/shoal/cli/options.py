"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Images = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of images, its address, shards of images, or a table of paths and labels."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Table of paths and labels (csv, tsv, jsonl, parquet), or its address."),
]
Labeled = Annotated[
    Path | None, typer.Option(help="Folder with a folder per category; needs --unlabeled.")
]
Unlabeled = Annotated[
    Path | None, typer.Option(help="Folder of unlabeled images; needs --labeled.")
]
EncoderName = Annotated[str | None, typer.Option(help="See `shoal encoders list`.")]
InputSize = Annotated[int | None, typer.Option(help="Side of the images the encoder sees.")]
PathColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the paths.")]
AllowMissing = Annotated[
    bool,
    typer.Option(
        "--allow-missing",
        help="Go on where many rows of a table name images that are not there, or shards are "
        "damaged.",
    ),
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the labels.")]
NClusters = Annotated[
    str | None,
    typer.Option(
        help="How many categories there are, 40, or a range to estimate it in, 30-50; estimated if "
        "absent."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:N or mps; the best one there is if absent.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a run that is there.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, say what was found and stop.")
]
Seed = Annotated[int | None, typer.Option(help="Decides every draw; 0 if absent.")]
Protocol = Annotated[
    str | None, typer.Option(help="Whose choices: shoal, paper, or reference (released code).")
]
FinishedRun = Annotated[Path, typer.Argument(help="A finished run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
Config = Annotated[
    Path | None, typer.Option(help="YAML settings, such as another run's config.yaml.")
]
Epochs = Annotated[int | None, typer.Option(help="How long to train.")]
MovedImages = Annotated[
    Path | None, typer.Option(help="Where the images are now, if they have moved.")
]
ForceFile = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]
