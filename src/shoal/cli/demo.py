"""`shoal demo`: discover the categories of the photographs in the package."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Device, Json, Train, log, reporter, result


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
