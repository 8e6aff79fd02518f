"""`shoal datasets`: list and verify the benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, result

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List and verify the benchmarks.

    \b
    shoal datasets list                  sizes and terms of the benchmarks
    shoal datasets verify cub data/cub   check which files are missing, list what to download
    """,
)


@app.command("list", short_help="List the benchmarks with their published sizes and terms.")
def list_(json: Json = False) -> None:
    """List the benchmarks with their published sizes and terms, e.g. `shoal datasets list`."""
    from dataclasses import asdict

    from shoal.data.benchmarks import BENCHMARKS

    rows = [["name", "images", "test", "classes", "known", "labeled", "terms"]]
    for name, facts in BENCHMARKS.items():
        counts = (facts.n_images, facts.n_test, facts.n_classes, facts.n_known)
        numbers = [f"{count:,}" for count in counts]
        labeled = f"{'~' if facts.labeled_within else ''}{facts.n_labeled:,}"
        rows.append([name, *numbers, labeled, facts.terms])
    lines = ["{:<12} {:>8} {:>7} {:>8} {:>6} {:>8}  {}".format(*row) for row in rows]
    end = "Next: shoal datasets verify NAME ROOT lists what to download for one."
    facts_by_name = {name: asdict(facts) for name, facts in BENCHMARKS.items()}
    result("\n".join([*lines, "", end]), facts_by_name, as_json=json)


@app.command(short_help="Check a benchmark for missing files.")
def verify(
    name: Annotated[str, typer.Argument(help="Name of a benchmark; see `shoal datasets list`.")],
    root: Annotated[Path, typer.Argument(help="Folder of the benchmark.")],
    json: Json = False,
) -> None:
    """Check a benchmark for missing files, e.g. `shoal datasets verify cub data/cub`.

    Compares counts with the published ones. If the benchmark is not complete, lists what to
    download, and exits with 3.
    """
    from dataclasses import asdict

    from shoal.data.benchmarks import verify as verify_benchmark

    verification = verify_benchmark(name, root)
    result(verification.describe(), asdict(verification), as_json=json)
    if not verification.is_complete:
        raise typer.Exit(3)
