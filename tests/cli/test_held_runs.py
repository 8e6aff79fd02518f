"""`shoal discover` beside another process on its folder, and what Ctrl-C and kill -9 do to it, at known moments."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from held_runs import start_held
from shoal.cli.main import app

pytestmark = pytest.mark.usefixtures("one_thread")


def discover(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["discover", *map(str, arguments), "--device", "cpu"])


@pytest.fixture
def given(photos, tmp_path: Path) -> list[object]:
    return [photos.folder, "--labels", photos.labels, "--config", photos.config, "--out", tmp_path / "run"]


def test_a_folder_that_a_living_process_writes_to_is_refused_whatever_is_asked_and_the_dead_hold_nothing(
    given, tmp_path: Path
) -> None:
    whole = discover(*given[:-1], tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
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
