"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Images = Annotated[
    Path | None,
    typer.Argument(
        help="Folder or address of images, shards of images, or a table of paths and labels."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="Table of paths and labels (csv, tsv, jsonl, parquet, xlsx): a file or an address; or "
        "folders:2 to label by the folders of the second level."
    ),
]
Labeled = Annotated[
    Path | None, typer.Option(help="Folder with a subfolder per category; needs --unlabeled.")
]
Unlabeled = Annotated[
    Path | None, typer.Option(help="Folder of unlabeled images; needs --labeled.")
]
EncoderName = Annotated[str | None, typer.Option(help="Encoder; see `shoal encoders list`.")]
InputSize = Annotated[int | None, typer.Option(help="Size in pixels to which images are resized.")]
PathColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the paths.")]
AllowMissing = Annotated[
    bool,
    typer.Option(
        "--allow-missing",
        help="Continue if many images of a table do not exist, or if shards are damaged.",
    ),
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the table that holds the labels.")]
Boxes = Annotated[
    Path | None,
    typer.Option(
        help="Boxes in the images, each of which is an item: JSON of MegaDetector or COCO, a table "
        "(path, x, y, width, height, label), or a folder of YOLO text files."
    ),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        help="Leave out boxes with a lower confidence; by default MegaDetector's typical threshold."
    ),
]
Margin = Annotated[
    float, typer.Option(help="Widen boxes on each side by this share of their size, e.g. 0.1.")
]
WholeImages = Annotated[
    bool, typer.Option("--whole-images", help="Images without a box are items.")
]
NClusters = Annotated[
    str | None,
    typer.Option(
        help="Number of categories, such as 40, or a range for the estimate, such as 30-50; "
        "by default, it is estimated."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N; by default, CUDA if there is a GPU.")
]
Train = Annotated[
    bool | None,
    typer.Option(
        "--train/--no-train",
        help="Train, or use the frozen encoder; by default, train if there are enough labels to "
        "tell whether it helps.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing run.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the input, print what would be done, and stop.")
]
Seed = Annotated[int | None, typer.Option(help="Random seed; by default 0.")]
Protocol = Annotated[
    str | None,
    typer.Option(help="Defaults: shoal, paper, or reference for those of the released code."),
]
FinishedRun = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
Config = Annotated[
    Path | None, typer.Option(help="YAML file of settings, such as the config.yaml of another run.")
]
Epochs = Annotated[int | None, typer.Option(help="Number of training epochs.")]
MovedImages = Annotated[Path | None, typer.Option(help="Folder of the images, if they have moved.")]
ForceFile = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
