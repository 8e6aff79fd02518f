"""`shoal discover` discovers the categories in a folder of images, `shoal demo` those of the
photographs in the package; `shoal compare` ranks methods by held-out labels."""

import shlex
import time
from pathlib import Path
from typing import Annotated

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
    Protocol,
    Resume,
    Seed,
    Train,
    Unlabeled,
    WholeImages,
    command_line,
    log,
    reporter,
    result,
    show_plan,
)
from shoal.errors import count, listed


def discover(
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
    method: Annotated[
        str | None, typer.Option(help="cms (the default), gcd, simgcd, …; see docs/methods.md.")
    ] = None,
    encoder: EncoderName = None,
    n_clusters: NClusters = None,
    epochs: Epochs = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Finish within about this many minutes: training stops in time, as after Ctrl-C, "
            "and the best result so far is used."
        ),
    ] = None,
    train: Train = None,
    input_size: InputSize = None,
    recipe: Annotated[str | None, typer.Option(help="Named settings, such as gpu or cub.")] = None,
    config: Config = None,
    protocol: Protocol = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting by name, e.g. training.batch_size=64; repeatable."),
    ] = None,
    review: Annotated[
        Path | None,
        typer.Option(
            help="A reviewed run to continue from. Its decisions become labels, names and "
            "cannot-links; its images, labels and settings are used unless others are given. The "
            "new run folder has -2 appended to its name, unless --out is given."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder to write; by default runs/<name of the folder or file>."),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    resume: Resume = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Discover the categories in a folder of images, e.g. `shoal discover photos/ --labels
    labels.csv`.

    Without --labels, images in subfolders are labeled with the name of the subfolder, and images
    directly in the folder are unlabeled.
    """
    began_at = time.monotonic()  # importing torch takes seconds
    from shoal.discovery.api import prepare
    from shoal.discovery.discovered_run import DiscoveredRun
    from shoal.discovery.job import ImageSource
    from shoal.discovery.results import collect_facts
    from shoal.discovery.run_job import preview, run_job
    from shoal.distributed import is_main
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
    job = prepare(
        source,
        review=review,
        out=out,
        device=device,
        resume=resume,
        force=force,
        command=command_line(),
        reporter=reporter(),
        began_at=began_at,
        method=method,
        recipe=recipe,
        config=config,
        encoder=encoder,
        n_clusters=n_clusters,
        epochs=epochs,
        input_size=input_size,
        seed=seed,
        protocol=protocol,
        train=train,
        max_minutes=max_minutes,
        changes=read_changes(changes or []),
    )
    if dry_run:
        plan = preview(job)
        sizes = [f"{n_labeled:7,}  {name}" for name, n_labeled in plan["categories"].items()]
        show_plan(plan, sizes, as_json=json)
        return
    run_job(job)
    if not is_main():
        return
    run = DiscoveredRun(job.run.path)
    facts = collect_facts(run)
    result(f"{facts['summary']}\n{run.path}\n{run.path / 'report.html'}", facts, as_json=json)
    where = shlex.quote(str(run.path))
    look = f"shoal report {where} --open, then " if job.refinement is None else ""
    log(f"next: {look}shoal review {where}")


def demo(
    out: Annotated[
        Path, typer.Option(help="Run folder to write; an existing demo is overwritten.")
    ] = Path("runs/demo"),
    train: Train = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Discover the categories of 498 photographs in the package, e.g. `shoal demo`.

    Half of the images of 8 categories are labeled; 8 categories are novel. Estimates the number of
    categories, and evaluates the result against the true classes. Needs no network.
    """
    from shoal.discovery.api import run_demo
    from shoal.discovery.discovered_run import score_to_dict
    from shoal.discovery.results import collect_facts

    run, score = run_demo(out, train=train, device=device, reporter=reporter())
    facts = collect_facts(run)
    path = run.path
    facts |= {**score_to_dict(score), "n_images": facts["n_images"]}
    lines = (facts["summary"], score.in_words(), path, path / "report.html")
    result("\n".join(map(str, lines)), facts, as_json=json)
    log(f"next: shoal report {path} --open, then shoal review {path}")
    log("on your own images: shoal discover photos/ --labels labels.csv")


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
    from shoal.discovery.comparison.evaluation import Comparison
    from shoal.discovery.discovery_settings import choose_comparison
    from shoal.discovery.job import ImageSource
    from shoal.discovery.run_job import preview, run_job
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
    if dry_run:
        plan = preview(job)
        for line in plan["held_out"]:
            log(line)
        trainings = f"{listed(plan['methods'])}: {count(plan['n_trainings'], 'training run')}"
        show_plan(plan, [trainings], as_json=json)
        return
    run_job(job)
    ranked = Comparison.open(job.run.path)
    result(f"{ranked.in_words()}\n{ranked.page}", ranked.to_dict(), as_json=json)
