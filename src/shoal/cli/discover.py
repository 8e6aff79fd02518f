"""`shoal discover`: a folder of images in, its categories out."""

import shlex
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
    Protocol,
    Resume,
    Seed,
    Unlabeled,
)

if TYPE_CHECKING:
    from shoal.discovery.pipeline import DiscoveryJob


def discover(
    images: Images = None,
    labels: Labels = None,
    labeled: Labeled = None,
    unlabeled: Unlabeled = None,
    path_column: PathColumn = None,
    label_column: LabelColumn = None,
    allow_missing: AllowMissing = False,
    method: Annotated[
        str | None, typer.Option(help="cms (the default), gcd, simgcd …: see docs/methods.md.")
    ] = None,
    encoder: EncoderName = None,
    n_clusters: NClusters = None,
    epochs: Epochs = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop training after so many minutes, as Ctrl-C does, with the best result so far."
        ),
    ] = None,
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--no-train",
            help="Train, or cluster the frozen encoder; if absent, train where labels can show "
            "that it helps.",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="better: keep some labels from training, to keep the first answer where it does "
            "not help; "
            "trained: keep none from it, keep the trained answer."
        ),
    ] = None,
    input_size: InputSize = None,
    recipe: Annotated[
        str | None, typer.Option(help="Named settings, such as cub or default.")
    ] = None,
    config: Config = None,
    protocol: Protocol = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting by name, e.g. training.batch_size=64; repeatable."),
    ] = None,
    review: Annotated[
        Path | None,
        typer.Option(
            help="A reviewed run to go on from: what people decided there are labels, names and "
            "cannot-links here; "
            "settings, images and labels are its own where absent, and --out is its name with -2."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder to write; runs/<name of the folder> if absent.")
    ] = None,
    seed: Seed = None,
    device: Device = None,
    resume: Resume = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write each epoch's metrics for TensorBoard into the run folder."
        ),
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Discover the categories in a folder of images, e.g. `shoal discover photos/ --labels
    labels.csv`.

    Labels may also come from folders: photos/<category>/*.jpg are labeled, other files are not.
    """
    from shoal.discovery.api import prepare
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
    job = prepare(
        source,
        review=review,
        out=out,
        device=device,
        resume=resume,
        force=force,
        tensorboard=tensorboard,
        command=command_line(),
        reporter=reporter(),
        method=method,
        recipe=recipe,
        config=config,
        encoder=encoder,
        answer=answer,
        n_clusters=n_clusters,
        epochs=epochs,
        input_size=input_size,
        seed=seed,
        protocol=protocol,
        train=train,
        max_minutes=max_minutes,
        changes=read_changes(changes or []),
    )
    do = _show_plan if dry_run else _run
    do(job, as_json=json)


def _show_plan(job: "DiscoveryJob", *, as_json: bool) -> None:
    """Say what was found, and what would be done."""
    from shoal.discovery.run_job import preview

    plan = preview(job)
    for line in job.collection.describe().split("\n")[1:]:
        say(line)
    if not plan["encoder_is_here"]:
        say(f"note: the encoder {plan['encoder']} is not here, and would be downloaded")
    result(plan["counted"], plan, as_json=as_json)
    where = job.run.path
    if plan["is_finished"]:
        say(
            f"{where} is finished, there is nothing left to do; without --dry-run its answer is "
            "shown again"
        )
    else:
        say(f"nothing was written; without --dry-run it goes to {where}")


def _run(job: "DiscoveryJob", *, as_json: bool) -> None:
    """Discover, and print the answer; of several processes one speaks."""
    from shoal.discovery.discovered_run import DiscoveredRun
    from shoal.discovery.facts import collect_facts
    from shoal.discovery.run_job import run_job
    from shoal.distributed import is_main

    run_job(job)
    if not is_main():
        return
    run = DiscoveredRun(job.run.path)
    facts = collect_facts(run)
    result(f"{facts['answer']}\n{run.path}\n{run.path / 'report.html'}", facts, as_json=as_json)
    where = shlex.quote(str(run.path))
    look = f"shoal report {where} --open, then " if job.refinement is None else ""
    say(f"next: {look}shoal review {where}")
