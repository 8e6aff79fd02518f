"""`shoal compare`: rank methods on a folder of images by held-out labels."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import (
    AllowMissing,
    Boxes,
    Config,
    Device,
    DryRun,
    EncoderName,
    Epochs,
    Force,
    Images,
    InputSize,
    Json,
    LabelColumn,
    Labeled,
    Labels,
    Margin,
    MinConfidence,
    NClusters,
    PathColumn,
    Resume,
    Seed,
    Unlabeled,
    WholeImages,
    command_line,
    log,
    reporter,
    result,
    show_plan,
)

if TYPE_CHECKING:
    from shoal.discovery.comparison.compare import ComparisonJob


def compare(
    images: Images = None,
    labels: Labels = None,
    labeled: Labeled = None,
    unlabeled: Unlabeled = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    boxes: Boxes = None,
    min_confidence: MinConfidence = None,
    margin: Margin = 0.0,
    whole_images: WholeImages = False,
    methods: Annotated[
        str | None,
        typer.Option(help="Two or more methods; by default cms,simgcd,gcd. See docs/methods.md."),
    ] = None,
    encoder: EncoderName = None,
    n_clusters: NClusters = None,
    epochs: Epochs = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Finish within about this many minutes: training stops in time, and the finished "
            "methods are compared."
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            help="Number of times to hold out different labels and train; more make the ranking "
            "more reliable."
        ),
    ] = 1,
    input_size: InputSize = None,
    config: Config = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of all methods, e.g. training.batch_size=64, or of one, e.g. "
            "gcd.training.lr=0.01; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write; by default runs/<name of the folder or file>-compare."),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    resume: Resume = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Compare methods on your images, e.g. `shoal compare photos/ --labels labels.csv --methods
    cms,simgcd,gcd`.

    Holds out some labels, of individual images and of whole categories, trains every method without
    them, and ranks the methods and the frozen encoder by their accuracy on them. Ends by printing
    the command that runs the best method with all labels.
    """
    began_at = time.monotonic()  # importing torch takes seconds
    from shoal.discovery.comparison.compare import prepare_comparison
    from shoal.discovery.discovery_settings import choose_comparison
    from shoal.discovery.job import ImageSource
    from shoal.methods.registry import read_changes

    source = ImageSource(
        images=images,
        labels=labels,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        boxes=boxes,
        min_confidence=min_confidence,
        margin=margin,
        whole_images=whole_images,
    )
    comparison = choose_comparison(
        methods,
        repeats=repeats,
        max_minutes=max_minutes,
        config=config,
        encoder=encoder,
        n_clusters=n_clusters,
        epochs=epochs,
        input_size=input_size,
        seed=seed,
        changes=read_changes(changes or []),
    )
    job = prepare_comparison(
        source,
        comparison,
        out=out,
        device=device,
        resume=resume,
        force=force,
        command=command_line(),
        reporter=reporter(),
        began_at=began_at,
    )
    do = _show_plan if dry_run else _run
    do(job, as_json=json)


def _show_plan(job: "ComparisonJob", *, as_json: bool) -> None:
    from shoal.discovery.run_job import preview
    from shoal.errors import count, listed

    plan = preview(job)
    for line in plan["held_out"]:
        log(line)
    trainings = f"{listed(plan['methods'])}: {count(plan['n_trainings'], 'training run')}"
    show_plan(plan, [trainings], as_json=as_json)


def _run(job: "ComparisonJob", *, as_json: bool) -> None:
    from shoal.discovery.comparison.evaluation import Comparison
    from shoal.discovery.run_job import run_job

    run_job(job)
    comparison = Comparison.open(job.run.path)
    result(f"{comparison.in_words()}\n{comparison.page}", comparison.to_dict(), as_json=as_json)
