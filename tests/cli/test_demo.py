"""`shoal demo`: offline, and honest about how right it was."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.data.collection import Truth
from shoal.data.demo import digits
from shoal.discovery import demo as module
from shoal.discovery.settings import choose_settings


def few_digits(seed: int):
    collection, truth = digits(seed)
    return collection.subset(range(150)), Truth(truth.names[:150], truth.labels[:150], truth.classes, truth.n_known)


@pytest.fixture
def quick(photos, monkeypatch: pytest.MonkeyPatch, one_thread) -> None:
    settings = replace(choose_settings(config=photos.config), n_clusters=10, train=False)
    monkeypatch.setattr(module, "digits", few_digits)
    monkeypatch.setattr(module, "demo_settings", lambda seed, train: replace(settings, seed=seed, train=train))


@pytest.mark.usefixtures("quick")
def test_it_ends_with_accuracies_the_run_and_the_report_and_may_be_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        run = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo"), "--device", "cpu"])
        assert run.exit_code == 0, run.stderr
        answer, score, later, path, report = run.stdout.splitlines()
        assert "% of 97 images that came later put right" in later
        assert "known categories found" in answer
        assert score.startswith("All ")
        assert (path, report) == (str(tmp_path / "demo"), str(tmp_path / "demo" / "report.html"))
        assert run.stderr.splitlines()[0].startswith("53 images, ")
        assert run.stderr.splitlines()[-1] == "next: shoal discover photos/ --labels labels.csv"


@pytest.mark.usefixtures("quick")
def test_json_is_one_object_with_the_three_accuracies(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo"), "--device", "cpu", "--json"])
    found = json.loads(run.stdout)
    assert {"run", "answer", "all", "known", "novel", "n_clusters", "later"} <= set(found)


@pytest.mark.usefixtures("quick")
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    run = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert run.exit_code == 2
    assert "holds files but no run" in run.stderr
