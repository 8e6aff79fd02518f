"""`shoal demo`: the whole path on the embedded digits, offline."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import Json, narrator, result, say
from shoal.cli.options import Device


def demo(
    out: Annotated[Path, typer.Option(help="Run folder to write; a demo that is there is overwritten.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    train: Annotated[
        bool, typer.Option("--train", help="Train too: minutes on a CPU, and too few epochs to help.")
    ] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Discover handwritten digits that nobody labeled, e.g. `shoal demo`; needs no data and no network.

    0 to 4 are known and half of them labeled, 5 to 9 are novel; in the end the answer is compared with the truth.
    """
    from shoal.discovery.demo import demo_settings, run_demo
    from shoal.discovery.outputs import answer
    from shoal.discovery.scoring import score_to_dict

    command = shlex.join(["shoal", *sys.argv[1:]])
    if not train:
        say("the frozen encoder, without training; --train adds it")
    found = run_demo(
        out, demo_settings(seed, train=train), device=device, force=True, command=command, narrator=narrator()
    )
    words, path = answer(found.run), found.run.path
    facts = {"run": str(path), "answer": words, **score_to_dict(found.score)}
    result(f"{words}\n{found.score.in_words()}\n{path}\n{path / 'report.html'}", facts, as_json=json)
    say("next: shoal discover photos/ --labels labels.csv")
