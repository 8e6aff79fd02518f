"""Discover the photographs that come with the package, and score the result: `shoal demo`."""

import csv
import time
from pathlib import Path

import shoal.data
from shoal.device import AnyDevice
from shoal.discovery.api import prepare
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.job import ImageSource
from shoal.discovery.reporter import LOGGED, Reporter
from shoal.discovery.run_job import run_job
from shoal.discovery.scoring import Score, score_run
from shoal.errors import UsageError
from shoal.runs import Run

# 498 photographs of 16 categories of Caltech-101; their license is beside the folder
PHOTOS = Path(shoal.data.__path__[0]) / "demo_photos"


def demo_table(name: str) -> dict[str, str]:
    """Return a table of the photographs by file name: truth.csv, or labels.csv with the labels of
    half of the images of every other category."""
    with (PHOTOS / name).open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def run_demo(
    out: Path | str,
    *,
    train: bool | None = None,
    device: AnyDevice = None,
    reporter: Reporter = LOGGED,
) -> tuple[DiscoveredRun, Score]:
    """Discover the photographs, score the run against the truth, and write the report.

    Overwrites an earlier demo in the folder, and no other run. Only the scoring of the finished run
    sees the truth.
    """
    there = Run(Path(out))
    if there.has("provenance.json") and there.provenance.get("root") != str(PHOTOS):
        raise UsageError(
            f"{there.path}: holds a run that is not a demo; choose another --out, or delete that "
            "folder"
        )
    job = prepare(
        ImageSource(images=PHOTOS, labels=PHOTOS / "labels.csv"),
        out=out,
        train=train,
        device=device,
        force=True,
        reporter=reporter,
        began_at=time.monotonic(),
    )
    run_job(job)
    run = DiscoveredRun(job.run.path)
    score = score_run(run, demo_table("truth.csv"))
    run.report()  # with the score
    return run, score
