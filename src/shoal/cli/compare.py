"""`shoal compare`: methods on a folder of images, ranked by labels that none of them saw."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import Json, command_line, reporter, result, say
from shoal.cli.options import (
    AllowMissing,
    Config,
    Device,
    DryRun,
    EncoderName,
    Epochs,
    Force,
    Images,
    InputSize,
    LabelColumn,
    Labeled,
    Labels,
    NClusters,
    PathColumn,
    Resume,
    Seed,
    Unlabeled,
)

if TYPE_CHECKING:
    from shoal.discovery.comparison.comparison_job import ComparisonJob


def compare(
    images: Images = None,
    labels: Labels = None,
    labeled: Labeled = None,
    unlabeled: Unlabeled = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    methods: Annotated[
        str | None,
        typer.Option(help="Two or more, as in cms,simgcd,gcd (the default): see docs/methods.md."),
    ] = None,
    encoder: EncoderName = None,
    n_clusters: NClusters = None,
    epochs: Epochs = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many minutes of training, and compare the methods that are "
            "finished."
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(
            help="Keep other labels this often and train again: slower, and surer of ranks."
        ),
    ] = 1,
    input_size: InputSize = None,
    config: Config = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of all methods that have it, or of one: gcd.training.lr=0.01."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; runs/<name of the folder>-compare.")
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

    Some labels are kept from all methods alike, of single images and of whole categories, and then
    judge them. The encoder without any training is compared too. Ends with the command that runs
    the first on everything.
    """
    from shoal.discovery.comparison.compare import prepare_comparison
    from shoal.discovery.image_source import ImageSource
    from shoal.methods.setting_changes import read_changes

    source = ImageSource(
        images=images,
        labels=labels,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
    )
    job = prepare_comparison(
        source,
        methods,
        command=command_line(),
        reporter=reporter(),
        out=out,
        device=device,
        resume=resume,
        force=force,
        config=config,
        encoder=encoder,
        draws=draws,
        max_minutes=max_minutes,
        n_clusters=n_clusters,
        epochs=epochs,
        input_size=input_size,
        seed=seed,
        changes=read_changes(changes or []),
    )
    do = _show_plan if dry_run else _run
    do(job, as_json=json)


def _show_plan(job: "ComparisonJob", *, as_json: bool) -> None:
    """Say what was found, and what would be done."""
    from shoal.discovery.run_job import preview
    from shoal.words import count, listed

    plan = preview(job)
    for line in [*job.collection.describe().split("\n")[1:], *plan["kept"]]:
        say(line)
    trainings = f"{listed(plan['methods'])}: {count(plan['n_trainings'], 'training')}"
    result(f"{plan['counted']}\n{trainings}", plan, as_json=as_json)
    where = job.run.path
    if plan["is_finished"]:
        say(
            f"{where} is finished, there is nothing left to do; without --dry-run its table is "
            "shown again"
        )
    else:
        say(f"nothing was written; without --dry-run it goes to {where}")


def _run(job: "ComparisonJob", *, as_json: bool) -> None:
    """Compare, and print the table."""
    from shoal.discovery.comparison.comparison_result import Comparison
    from shoal.discovery.run_job import run_job

    run_job(job)
    comparison = Comparison.open(job.run.path)
    result(f"{comparison.in_words()}\n{comparison.page}", comparison.to_dict(), as_json=as_json)
