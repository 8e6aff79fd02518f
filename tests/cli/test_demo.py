"""`shoal demo`: offline, and honest about how right it was."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.data.collection import Truth
from shoal.data.digits import digits
from shoal.discovery import demo as module
from shoal.discovery.discovery_settings import choose_settings


def few_digits(seed: int):
    collection, truth = digits(seed)
    return collection.subset(range(150)), Truth(
        truth.names[:150], truth.labels[:150], truth.classes, truth.n_known
    )


@pytest.fixture
def quick(photos, monkeypatch: pytest.MonkeyPatch, one_thread) -> None:
    settings = replace(choose_settings(config=photos.config), n_clusters=10, train=False)
    monkeypatch.setattr(module, "digits", few_digits)
    monkeypatch.setattr(
        module, "demo_settings", lambda seed, train: replace(settings, seed=seed, train=train)
    )


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_json_is_one_object_with_the_three_accuracies(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        app, ["demo", "--out", str(tmp_path / "demo"), "--device", "cpu", "--json"]
    )
    found = json.loads(run.stdout)
    assert {"run", "answer", "all", "known", "novel", "n_clusters", "later"} <= set(found)


@pytest.mark.usefixtures("quick")
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    run = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert run.exit_code == 2
    assert "holds files but no run" in run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_that_is_not_a_demo_is_refused_and_a_demo_of_another_seed_is_overwritten(
    photos, tmp_path: Path, is_finished: bool
) -> None:
    out = str(tmp_path / "run")
    given = [
        "discover",
        photos.folder,
        "--labels",
        photos.labels,
        "--config",
        photos.config,
        "--no-train",
    ]
    assert (
        CliRunner().invoke(app, [*map(str, given), "--out", out, "--device", "cpu"]).exit_code == 0
    )
    about = tmp_path / "run" / "provenance.json"
    if not is_finished:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"finished": None}))
    before = {file: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    run = CliRunner().invoke(app, ["demo", "--out", out, "--device", "cpu"])
    assert (run.exit_code, run.stdout) == (2, "")
    assert (
        "run: holds a run that is not a demo; choose another --out, or delete that folder"
        in run.stderr
    )
    assert {file: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before
    for seed in ("0", "1"):
        command = [
            "demo",
            "--out",
            str(tmp_path / "demo"),
            "--seed",
            seed,
            "--no-train",
            "--device",
            "cpu",
        ]
        assert CliRunner().invoke(app, command).exit_code == 0
    assert json.loads((tmp_path / "demo" / "provenance.json").read_text())["seed"] == 1
