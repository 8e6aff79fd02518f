"""Discover the photographs that come with the package, and score the result: `shoal demo`."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import shoal.data
from shoal.arrays import UNLABELED
from shoal.data.splits import known_novel_split
from shoal.discovery.api import discover
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.reporter import Reporter
from shoal.discovery.scoring import Score, score_run
from shoal.errors import UsageError
from shoal.runs import Run

PHOTOS = Path(shoal.data.__path__[0]) / "demo_photos"
"""498 photographs of 16 categories of Caltech-101; its license is beside them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Demo:
    """The run of the demo, and how it compares with the truth."""

    run: DiscoveredRun
    score: Score


def demo_truth() -> dict[str, str]:
    """The true category of each photograph by its file name."""
    with (PHOTOS / "truth.csv").open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def demo_labels(truth: dict[str, str], seed: int = 0) -> dict[str, str]:
    """The labels of half of the images of every other category; `seed` draws the images."""
    names = list(truth)
    known = sorted(set(truth.values()))[::2]
    labels = known_novel_split(list(truth.values()), known, seed=seed)
    return {names[row]: known[labels[row]] for row in np.flatnonzero(labels != UNLABELED)}


def run_demo(
    out: Path | str,
    *,
    seed: int = 0,
    train: bool | None = None,
    device: str | torch.device | None = None,
    reporter: Reporter | None = None,
) -> Demo:
    """Discover the photographs, compare the result with the truth, and write the report.

    An earlier demo in the folder is overwritten, any other run is refused. The truth reaches the
    scoring alone, after the run is finished.
    """
    _refuse_other_run(Run(Path(out)))
    truth = demo_truth()
    run = discover(
        PHOTOS,
        demo_labels(truth, seed),
        out=out,
        seed=seed,
        train=train,
        device=device,
        force=True,
        reporter=reporter or Reporter(),
    )
    score = score_run(run, truth)
    run.report()  # again, with the score
    return Demo(run=run, score=score)


def _refuse_other_run(run: Run) -> None:
    if run.has("provenance.json") and run.provenance.get("root") != str(PHOTOS):
        raise UsageError(
            f"{run.path}: holds a run that is not a demo; choose another --out, or delete that "
            "folder"
        )
