"""`shoal demo`: discover the photographs that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, reporter, result, say
from shoal.cli.options import Device


def demo(
    out: Annotated[
        Path, typer.Option(help="Run folder to write; a demo that is there is overwritten.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--no-train",
            help="Train, or cluster the frozen encoder; if absent, train where labels can show "
            "that it helps.",
        ),
    ] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Discover the categories of 498 photographs, e.g. `shoal demo`.

    Needs no data and no network.

    Half of the images of 8 categories are labeled, 8 categories are novel. Finds the categories and
    how many there are, and compares the result with the truth.
    """
    from shoal.discovery.demo import run_demo
    from shoal.discovery.facts import collect_facts
    from shoal.discovery.scoring import score_to_dict

    done = run_demo(out, seed=seed, train=train, device=device, reporter=reporter())
    facts = collect_facts(done.run)
    path = done.run.path
    facts |= {**score_to_dict(done.score), "n_images": facts["n_images"]}
    lines = (facts["answer"], done.score.in_words(), path, path / "report.html")
    result("\n".join(map(str, lines)), facts, as_json=json)
    say(f"next: shoal report {path} --open, then shoal review {path}")
    say("on your own images: shoal discover photos/ --labels labels.csv")
