"""`shoal demo`: the whole path on the embedded digits, offline."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, command_line, reporter, result, say
from shoal.cli.options import Device


def demo(
    out: Annotated[
        Path, typer.Option(help="Run folder to write; a demo that is there is overwritten.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    train: Annotated[
        bool,
        typer.Option(
            "--train/--no-train", help="Train, a minute or two, or cluster the frozen encoder."
        ),
    ] = True,
    device: Device = None,
    json: Json = False,
) -> None:
    """Discover handwritten digits that nobody labeled, e.g. `shoal demo`.

    Needs no data and no network.

    0 to 4 are known and half of them labeled, 5 to 9 are novel. Trains, finds the categories and
    how many there are, assigns digits that come later, and compares with the truth that was kept
    aside.
    """
    from dataclasses import asdict

    from shoal.discovery.demo import demo_settings, run_demo
    from shoal.discovery.facts import collect_facts
    from shoal.discovery.scoring import score_to_dict

    done = run_demo(
        out,
        demo_settings(seed, train=train),
        device=device,
        command=command_line(),
        reporter=reporter(),
    )
    facts = collect_facts(done.run)
    path = done.run.path
    facts |= {
        **score_to_dict(done.score),
        "n_images": facts["n_images"],
        "later": asdict(done.later),
    }
    lines = (
        facts["answer"],
        done.score.in_words(),
        done.later.in_words(),
        path,
        path / "report.html",
    )
    result("\n".join(map(str, lines)), facts, as_json=json)
    say("next: shoal discover photos/ --labels labels.csv")
