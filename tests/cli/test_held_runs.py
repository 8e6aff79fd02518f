"""`shoal discover` with a second process on its folder, and with Ctrl-C and kill -9 at known
points."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from commands import discover, shoal
from held_runs import ask_to_stop, hold_lock, start_held
from shoal.runs import Run
from small_runs import write_small

pytestmark = pytest.mark.usefixtures("one_thread")

HANGS_S = 600


@pytest.mark.slow
def test_a_folder_in_use_is_refused_and_a_killed_process_releases_it(
    given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = discover(*given[:-1], tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    # With cached embeddings, the next run would skip the stage that it is paused in.
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "empty"))
    writer = start_held("embedding images", 1, "discover", *given, "--device", "cpu")
    before = sorted(file.name for file in (tmp_path / "run").iterdir())
    for flags in ([], ["--force"], ["--resume"], ["--dry-run"]):
        run = discover(*given, *flags)
        assert (run.exit_code, run.stdout) == (2, "")
        assert f"is being written by process {writer.pid} on " in run.stderr.splitlines()[-1]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == before
    writer.kill()
    writer.communicate()
    assert (tmp_path / "run" / "run.lock").is_file()
    again = discover(*given, "--resume")
    assert again.exit_code == 0, again.stderr
    assert not (tmp_path / "run" / "run.lock").exists()
    for name in ("assignments.csv", "tree.npy"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_no_command_writes_to_a_run_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.server.app.serve", lambda *given: pytest.fail("a review is begun"))
    run = write_small(tmp_path / "run")
    truth = tmp_path / "truth.csv"
    truth.write_text(
        "path,label\n" + "".join(f"{row.path},{row.category}\n" for row in run.assignments)
    )
    with hold_lock(run.path) as holder:
        before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
        for command in (
            ["report"],
            ["review", "--no-open", "--port", "0"],
            ["evaluate", "--truth", str(truth)],
        ):
            found = shoal(command[0], run.path, *command[1:])
            assert found.exit_code == 2, (command, found.stderr)
            assert f"is being written by process {holder.pid} on " in found.stderr.splitlines()[-1]
        assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before
        holder.kill()


def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Let a held process continue, and return its output."""
    return process.communicate("\n", timeout=HANGS_S)


TIMED = ("provenance.json", "metrics.jsonl", "train.log", "report.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "at", "n_epochs"),
    [("preparing views", 1, 0), ("training, first epoch", 1, 0), ("training", 5, 1)],
)
def test_ctrl_c_keeps_the_best_result_and_resume_continues_to_the_same_bytes(
    given, tmp_path: Path, stage: str, at: int, n_epochs: int
) -> None:
    process = start_held(stage, at, "--verbose", "discover", *given, "--device", "cpu", "--json")
    ask_to_stop(process)
    printed, messages = finish(process)
    assert process.returncode == 0, messages
    found = json.loads(printed)
    run = Run.open(tmp_path / "run")
    assert (
        found["stopped_early"] == {"epochs": n_epochs, "of": 2} == run.provenance["stopped_early"]
    )
    assert f"Stopped training after {n_epochs} of 2 epochs." in messages
    assert f"Training was stopped after {n_epochs} of 2 epochs." in (
        run.path / "report.html"
    ).read_text("utf-8")
    assert not run.has("model.safetensors")  # not saved before three epochs
    again = discover(*given)
    assert again.exit_code == 0
    assert "give --resume to continue" in again.stderr
    resumed = discover(*given, "--resume", "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["stopped_early"] is None
    assert not run.has("checkpoint.safetensors")
    whole = discover(*given[:-1], tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    parts = {file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*")}
    assert {file.relative_to(run.path) for file in run.path.rglob("*")} == parts
    for part in parts:
        if part.suffix and part.name not in TIMED:
            assert (run.path / part).read_bytes() == (tmp_path / "whole" / part).read_bytes(), part


@pytest.mark.slow
def test_a_second_ctrl_c_quits_and_the_run_can_be_resumed(given, tmp_path: Path) -> None:
    process = start_held("training", 5, "discover", *given, "--device", "cpu")
    ask_to_stop(process)
    process.send_signal(signal.SIGINT)
    printed, messages = process.communicate(timeout=HANGS_S)
    assert (process.returncode, printed) == (130, "")
    assert "--resume" in messages.splitlines()[-1]
    assert not Run(tmp_path / "run").is_finished
    assert "interrupted" in (tmp_path / "run" / "train.log").read_text("utf-8").splitlines()[-1]
    assert discover(*given, "--resume").exit_code == 0
