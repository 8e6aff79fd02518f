"""`shoal reproduce`: the tables and figures of the paper, ours beside the printed numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import Json, complain, result, say
from shoal.cli.options import Device, EncoderName, Epochs, InputSize
from shoal.errors import UsageError
from shoal.words import count

if TYPE_CHECKING:
    from shoal.reproduce.reproduce import Reproduction

FAILED = 1


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="1 … 17, iterations, retrieval, tsne, one or several; none: list them."
        ),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option("--root", help="DATASET=FOLDER, as often as there are datasets."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for cells and tables.")] = Path(
        "reproduction"
    ),
    encoder: EncoderName = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 0,1,2.")] = "0",
    epochs: Epochs = None,
    input_size: InputSize = None,
    validation_share: Annotated[
        float,
        typer.Option(
            "--validation-share", help="Share of images set aside to choose snapshot and K."
        ),
    ] = 0.2,
    protocol: Annotated[
        str,
        typer.Option(
            help="paper: all choices by given labels. "
            "reference: the released code's, which chooses by hidden labels."
        ),
    ] = "paper",
    methods: Annotated[
        str | None,
        typer.Option(help="Only the rows of these methods, as in cms,gcd; all if not given."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for all rows, e.g. training.batch_size=64."),
    ] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Run tables of the paper, e.g. `shoal reproduce 1 3 4 --root cub=data/cub --encoder
    efficientnet-lite2`.

    Prints our numbers with the paper's in parentheses and writes them as Markdown, LaTeX and CSV.
    Every finished cell and every epoch of a training are kept in --out, so an interrupted call goes
    on where it was.
    """
    if not tables:
        _list_experiments(as_json=json)
        return
    from shoal.device import choose_device
    from shoal.distributed import is_main, processes
    from shoal.methods.setting_changes import read_changes, read_pairs
    from shoal.reproduce.plan import ReproduceOptions
    from shoal.reproduce.reproduce import reproduce as run

    seed_words = seeds.replace(",", " ").split()
    if not seed_words or not all(word.isdecimal() for word in seed_words):
        raise UsageError(f"--seeds: found {seeds!r}, expected whole numbers, as in 0,1,2")
    pairs = list(change or [])
    if epochs is not None:
        pairs.append(f"training.epochs={epochs}")
    options = ReproduceOptions(
        encoder=encoder,
        input_size=input_size,
        protocol=protocol,
        changes=read_changes(pairs),
        validation_share=validation_share,
        methods=tuple((methods or "").replace(",", " ").split()),
    )
    home = choose_device(device)
    with processes(home):
        reproductions = run(
            tables,
            read_pairs(root or [], "--root", "DATASET=FOLDER"),
            out,
            device=home,
            seeds=[int(word) for word in seed_words],
            options=options,
            tell=say,
        )
    if is_main():
        _print(reproductions, as_json=json)


def _print(reproductions: list["Reproduction"], *, as_json: bool) -> None:
    """Print tables and the names of files; what failed ends in an error."""
    files = [str(file) for each in reproductions for file in each.files]
    numbers = [record for each in reproductions for record in each.records]
    failures = {key: reason for each in reproductions for key, reason in each.failures.items()}
    end = f"\nWritten: {', '.join(files)}" if files else ""
    told = {"numbers": numbers, "files": files, "failed": failures}
    result("\n".join(each.text for each in reproductions) + end, told, as_json=as_json)
    if failures:
        n_failed = count(len(failures), "cell")
        complain(f"error: {n_failed} failed, left out here; the same command tries again")
        raise typer.Exit(FAILED)


def _list_experiments(*, as_json: bool) -> None:
    from shoal.reproduce.experiments import EXPERIMENTS

    titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    lines = [f"{name:<11} {title}" for name, title in titles.items()]
    end = "Next: shoal reproduce 1 --root cub=data/cub --encoder efficientnet-lite2"
    result("\n".join([*lines, "", end]), titles, as_json=as_json)
