"""`shoal datasets`: the benchmarks, where to get them, and whether they are complete."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, progress, result

INCOMPLETE = 3

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, verify and prepare the benchmarks.

    \b
    shoal datasets list                  counts and terms
    shoal datasets verify cub data/cub   what is there, what is missing
    shoal datasets prepare cub data/cub  unpack, index, say what to fetch
    """,
)

Name = Annotated[str, typer.Argument(help="A benchmark, as `shoal datasets list` names it.")]
Root = Annotated[
    Path, typer.Argument(help="The folder that holds it, or into which it was downloaded.")
]


@app.command("list")
def list_(json: Json = False) -> None:
    """Name the benchmarks with their published counts and terms, e.g. `shoal datasets list`."""
    from dataclasses import asdict

    from shoal.data.benchmarks import BENCHMARKS

    rows = [["name", "images", "test", "classes", "known", "labeled", "terms"]]
    for name, facts in BENCHMARKS.items():
        counts = (facts.n_images, facts.n_test, facts.n_classes, facts.n_known)
        labeled = f"{'~' if facts.labeled_within else ''}{facts.n_labeled:,}"
        numbers = [f"{count:,}" for count in counts]
        rows.append([name, *numbers, labeled, facts.terms])
    lines = ["{:<12} {:>8} {:>7} {:>8} {:>6} {:>8}  {}".format(*row) for row in rows]
    end = "Next: shoal datasets prepare NAME ROOT says where to get one and unpacks it."
    facts_by_name = {name: asdict(facts) for name, facts in BENCHMARKS.items()}
    result("\n".join([*lines, "", end]), facts_by_name, as_json=json)


@app.command()
def verify(name: Name, root: Root, json: Json = False) -> None:
    """Say what of a benchmark is there and what is missing, e.g. `shoal datasets verify cub
    data/cub`.

    Counts stand beside the published ones, and archives are read to the end. Exits with 3 when it
    is not complete.
    """
    from shoal.data.benchmarks import verify as look

    verification = look(name, root, bar=progress)
    text = verification.describe()
    if not verification.is_complete:
        text += f"\nNext: shoal datasets prepare {name} {root} says where to get the rest."
    result(text, verification.to_dict(), as_json=json)
    if not verification.is_complete:
        raise typer.Exit(INCOMPLETE)


@app.command()
def prepare(name: Name, root: Root, json: Json = False) -> None:
    """Unpack downloaded archives, index the images, say what to fetch, e.g. `shoal datasets prepare
    cub data/cub`.

    Nothing is downloaded and nothing is overwritten. Exits with 3 when it is not complete.
    """
    from shoal.data.benchmarks import prepare as work

    verification = work(name, root, bar=progress)
    result(verification.describe(), verification.to_dict(), as_json=json)
    if not verification.is_complete:
        raise typer.Exit(INCOMPLETE)
