"""`shoal reproduce`: run the tables of the CMS paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import Device, EncoderName, Epochs, InputSize, Json, log, log_error, result
from shoal.errors import UsageError, count

if TYPE_CHECKING:
    from shoal.reproduce.runner import Reproduction


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="One or more tables, such as 1 or iterations; by default, they are listed."
        ),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option("--root", help="DATASET=FOLDER; repeatable, once per dataset."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for cells and tables.")] = Path(
        "reproduction"
    ),
    encoder: EncoderName = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 0,1,2.")] = "0",
    epochs: Epochs = None,
    input_size: InputSize = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="paper: choose snapshot and K by given labels. reference: choose them by hidden "
            "labels, as the released code does."
        ),
    ] = "paper",
    methods: Annotated[
        str | None,
        typer.Option(help="Run only the rows of these methods, as in cms,gcd; by default all."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for all rows, e.g. training.batch_size=64."),
    ] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Reproduce tables of the CMS paper, e.g. `shoal reproduce 1 3 4 --root cub=data/cub --encoder
    efficientnet-lite2`.

    Prints our numbers with the paper's in parentheses, and writes Markdown and CSV. Finished cells
    and training runs are stored in --out; the same command resumes an interrupted one.
    """
    if not tables:
        _list_experiments(as_json=json)
        return
    from shoal.device import choose_device
    from shoal.distributed import is_main, processes
    from shoal.methods.registry import read_changes, read_pairs
    from shoal.reproduce.plan import ReproduceOptions
    from shoal.reproduce.runner import reproduce as run

    seed_words = seeds.replace(",", " ").split()
    if not all(word.isdecimal() for word in seed_words):
        raise UsageError(f"--seeds: found {seeds!r}, expected whole numbers, as in 0,1,2")
    pairs = list(change or [])
    if epochs is not None:
        pairs.append(f"training.epochs={epochs}")
    options = ReproduceOptions(
        encoder=encoder,
        input_size=input_size,
        protocol=protocol,
        changes=read_changes(pairs),
        methods=tuple((methods or "").replace(",", " ").split()),
    )
    chosen_device = choose_device(device)
    with processes(chosen_device):
        reproductions = run(
            tables,
            read_pairs(root or [], "--root", "DATASET=FOLDER"),
            out,
            device=chosen_device,
            seeds=[int(word) for word in seed_words],
            options=options,
            log=log,
        )
    if is_main():
        _print(reproductions, as_json=json)


def _print(reproductions: list["Reproduction"], *, as_json: bool) -> None:
    """Print tables and the names of files; exit with 1 if a cell failed."""
    files = [str(file) for each in reproductions for file in each.files]
    failures = {key: error for each in reproductions for key, error in each.failures.items()}
    facts = {
        "numbers": [record for each in reproductions for record in each.records],
        "files": files,
        "failed": failures,
    }
    texts = [each.text for each in reproductions]
    result("\n".join([*texts, f"Written: {', '.join(files)}"]), facts, as_json=as_json)
    if failures:
        log_error(f"error: {count(len(failures), 'cell')} failed; run the same command to retry")
        raise typer.Exit(1)


def _list_experiments(*, as_json: bool) -> None:
    from shoal.reproduce.experiments import EXPERIMENTS

    titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    lines = [f"{name:<11} {title}" for name, title in titles.items()]
    example = "Next: shoal reproduce 1 --root cub=data/cub --encoder efficientnet-lite2"
    result("\n".join([*lines, "", example]), titles, as_json=as_json)
