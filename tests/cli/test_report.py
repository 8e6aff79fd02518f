import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from served import until
from shoal.cli.main import app
from shoal.runs import Assignment, Run


@dataclass(frozen=True)
class Settings:
    epochs: int = 0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = Run.create(tmp_path / "birds")
    found.start(Settings(), seed=0, device="cpu", command="shoal discover")
    found.write_assignments(
        [
            Assignment(
                path="a.png",
                category_id=0,
                category="tern",
                is_novel=False,
                confidence=1,
                outlier_score=0,
            )
        ]
    )
    found.write_json(
        "estimate", {"n_clusters": 1, "curve": {"n_clusters": [1, 2], "accuracy": [1.0, 0.5]}}
    )
    found.finish()
    return found


def test_the_report_is_written_into_the_run_and_its_path_printed(run: Run) -> None:
    done = CliRunner().invoke(app, ["report", str(run.path)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{run.path / 'report.html'}\n"
    assert "next: shoal report" in done.stderr
    assert (run.path / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_another_file_figures_and_json(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "birds.html"
    figures = tmp_path / "figures"
    done = CliRunner().invoke(
        app, ["report", str(run.path), "-o", str(target), "--figures", str(figures), "--json"]
    )
    assert done.exit_code == 0, done.stderr
    drawn = [str(figures / f"n_clusters_curve.{kind}") for kind in ("svg", "png")]
    assert json.loads(done.stdout) == {"report": str(target), "figures": drawn}
    assert target.exists()
    assert all(Path(file).stat().st_size for file in drawn)
    assert not (run.path / "report.html").exists()
    assert "The dendrogram is left out: the run holds no tree." in done.stderr


@pytest.mark.slow
def test_open_shows_it_in_a_browser_whose_own_words_nobody_hears(run: Run, tmp_path: Path) -> None:
    """The browser of this test writes down what it was given, and prints on both streams as real ones do."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "given"}\necho noise; echo noise >&2\n')
    browser.chmod(0o700)
    words = [sys.executable, "-m", "shoal", "report", str(run.path), "--open"]
    done = subprocess.run(
        words,
        env={**os.environ, "BROWSER": str(browser)},
        capture_output=True,
        text=True,
        check=True,
    )
    until(lambda: (tmp_path / "given").exists() and (tmp_path / "given").read_text().endswith("\n"))
    assert (tmp_path / "given").read_text() == f"{(run.path / 'report.html').as_uri()}\n"
    assert "noise" not in done.stdout + done.stderr


def test_open_without_a_browser_says_which_file_to_open(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delattr(
        subprocess, "Popen"
    )  # nothing is started: one of text would take over the terminal
    done = CliRunner().invoke(app, ["report", str(run.path), "--open"])
    assert (done.exit_code, done.stdout) == (0, f"{run.path / 'report.html'}\n")
    assert done.stderr.splitlines() == [
        f"note: no browser was found here; open {run.path / 'report.html'} in one"
    ]


def test_tsne_where_it_cannot_be_drawn_is_left_out(run: Run) -> None:
    done = CliRunner().invoke(app, ["report", str(run.path), "--tsne"])
    assert done.exit_code == 0, done.stderr
    assert "The map is left out" in (run.path / "report.html").read_text("utf-8")


def test_a_folder_that_is_no_run_and_one_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert wrong.exit_code == 3
    assert "no run here" in wrong.stderr
    (tmp_path / "taken").write_text("")
    wrong = CliRunner().invoke(
        app, ["report", str(run.path), "-o", str(tmp_path / "taken" / "x.html")]
    )
    assert wrong.exit_code == 2
    assert "is a file, expected a folder" in wrong.stderr
