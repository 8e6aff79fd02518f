"""Killed with SIGKILL at any moment and resumed, a run gives the same bytes as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.runs import Run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

PROGRAM = Path(__file__).with_name("killed_runs.py")
USUAL = ("frozen embedding", "first report", "epoch 1", "between epochs", "holding the lock")
RARE = (
    "at the start", "decoding", "thumbnails", "first tables", "before training", "epoch 2", "after training",
    "writing tables", "finished",
)  # fmt: skip
TIMED = ("provenance.json", "metrics.jsonl", "train.log", "report.html")
"""Files that hold times."""


def kill_and_resume(photos, runs: Path, moments: tuple[str, ...]) -> dict[str, list[int]]:
    runs.mkdir()
    arguments = [photos.folder, photos.labels, photos.config, runs, *moments]
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("moments", [USUAL, pytest.param(RARE, marks=pytest.mark.slow)], ids=["usual", "rare"])
def test_killed_and_resumed_equals_uninterrupted(photos, tmp_path: Path, moments: tuple[str, ...]) -> None:
    # Five known categories, of which one is hidden from training, so that the answers are compared as well.
    labeled = list(photos.truth.items())[:40]
    photos.labels.write_text("\n".join(["path,label", *(f"{name},{colour}" for name, colour in labeled)]))
    # The last snapshot, whatever validation says of it: what a resume has lost would show there.
    photos.config.write_text(photos.config.read_text().replace("epochs: 2,", "epochs: 2, snapshot: last,"))
    ends = kill_and_resume(photos, tmp_path / "runs", moments)
    assert ends.pop("whole") == [0]
    assert ends == {moment: [-signal.SIGKILL, 0] for moment in moments}
    whole = Run.open(tmp_path / "runs" / "whole")
    assert json.loads((whole.path / "metrics.jsonl").read_text().splitlines()[-1])["is_best"]
    parts = {file.relative_to(whole.path) for file in whole.path.rglob("*")}
    assert {part.name for part in parts} >= {"choice.json", "model.safetensors", "thumbnails.zip", "tree.npy"}
    for moment in moments:
        resumed = Run.open(tmp_path / "runs" / moment)
        held = {file.relative_to(resumed.path) for file in resumed.path.rglob("*")}
        assert held == parts, f"{moment}: something was left behind"
        for part in parts:
            if part.suffix and part.name not in TIMED:
                assert (resumed.path / part).read_bytes() == (whole.path / part).read_bytes(), f"{moment}: {part}"
        assert [row["epoch"] for row in resumed.metrics] == [1, 2], moment
        assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in whole.metrics], moment
