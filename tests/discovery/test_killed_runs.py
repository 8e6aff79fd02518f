"""A run killed with SIGKILL at any moment resumes to the same bytes as an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from photo_runs import run_on, stop
from shoal.discovery.discovery_settings import choose_settings
from shoal.runs import Run

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
    pytest.mark.usefixtures("one_thread"),
]

PROGRAM = Path(__file__).with_name("killed_runs.py")
MOMENTS = (
    "at the start",
    "decoding",
    "frozen embedding",
    "thumbnails",
    "first tables",
    "first report",
    "before training",
    "epoch 1",
    "between epochs",
    "epoch 2",
    "after training",
    "writing tables",
    "holding the lock",
    "finished",
)

# Files that hold times
TIMED = ("provenance.json", "metrics.jsonl", "train.log", "report.html")


def kill_and_resume(photos, runs: Path, moments: tuple[str, ...]) -> dict[str, list[int]]:
    runs.mkdir()
    arguments = [photos.folder, photos.labels, photos.config, runs, *moments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_same(resumed: Run, whole: Run, moment: str) -> None:
    parts, held = (
        {file.relative_to(run.path) for file in run.path.rglob("*")} for run in (whole, resumed)
    )
    assert held == parts, f"{moment}: something was left behind"
    for part in parts:
        if part.suffix and part.name not in TIMED:
            assert (resumed.path / part).read_bytes() == (whole.path / part).read_bytes(), (
                f"{moment}: {part}"
            )
    epochs = [row["epoch"] for row in whole.metrics]
    assert [row["epoch"] for row in resumed.metrics] == epochs, moment
    assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in whole.metrics], (
        moment
    )


def test_a_run_interrupted_between_epochs_resumes_to_the_same_bytes(
    same_photos, discover_same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new checkpoint is already written, metrics.jsonl is not."""
    settings = choose_settings(config=same_photos.config, n_clusters=5)
    with monkeypatch.context() as patched:
        patched.setattr("shoal.training.loop.write_text", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(same_photos, tmp_path / "cut", settings)
    assert (tmp_path / "cut" / "checkpoint.safetensors").is_file()
    assert not (tmp_path / "cut" / "metrics.jsonl").exists()
    resumed = run_on(same_photos, tmp_path / "cut", settings, resume=True)
    assert_same(resumed, Run(discover_same(train=True)), "between epochs")


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(photos, tmp_path: Path) -> None:
    # One of five known categories is hidden from training, so that frozen and trained results are
    # compared as well.
    # Some labels are wrong, so that training does not stop early with all of them correct.
    labeled = list(photos.truth.items())[:40]
    colors = [color if i % 3 else "red" for i, (_, color) in enumerate(labeled)]
    rows = [f"{name},{color}" for (name, _), color in zip(labeled, colors, strict=True)]
    photos.labels.write_text("\n".join(["path,label", *rows]))
    # The last snapshot, whatever its validation accuracy, shows any state that a resume has lost.
    photos.config.write_text(
        photos.config.read_text().replace("epochs: 2,", "epochs: 5, snapshot: last,")
    )
    ends = kill_and_resume(photos, tmp_path / "runs", MOMENTS)
    assert ends.pop("whole") == [0]
    assert ends == {moment: [-signal.SIGKILL, 0] for moment in MOMENTS}
    whole = Run.open(tmp_path / "runs" / "whole")
    assert json.loads((whole.path / "metrics.jsonl").read_text().splitlines()[-1])["is_best"]
    parts = {file.name for file in whole.path.rglob("*")}
    assert parts >= {"choice.json", "model.safetensors", "thumbnails.bin", "tree.npy"}
    for moment in MOMENTS:
        assert_same(Run.open(tmp_path / "runs" / moment), whole, moment)
