import json
from pathlib import Path

import pytest

from commands import shoal
from shoal.runs import Run
from small_runs import write_small


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_small(tmp_path / "birds")


def test_the_report_is_written_to_the_run_folder_and_its_path_printed(run: Run) -> None:
    done = shoal("report", run.path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{run.path / 'report.html'}\n"
    assert (run.path / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_output_file_figures_and_json(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "birds.html"
    figures = tmp_path / "figures"
    done = shoal("report", run.path, "-o", target, "--figures", figures, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["report"] == str(target)
    assert str(figures / "dendrogram.svg") in found["figures"]
    assert target.exists()
    assert all(Path(file).stat().st_size for file in found["figures"])
    assert not (run.path / "report.html").exists()


def test_folders_without_a_run_and_unwritable_files_are_refused(run: Run, tmp_path: Path) -> None:
    wrong = shoal("report", tmp_path)
    assert wrong.exit_code == 3
    assert "not a run folder" in wrong.stderr
    (tmp_path / "taken").write_text("")
    wrong = shoal("report", run.path, "-o", tmp_path / "taken" / "x.html")
    assert wrong.exit_code == 2
    assert "cannot be written" in wrong.stderr
