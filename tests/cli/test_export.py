"""`shoal export`: a run for other programs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app

pytestmark = pytest.mark.usefixtures("one_thread")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def run(photos, tmp_path: Path) -> Path:
    given = [photos.folder, "--labels", photos.labels, "--config", photos.config, "--n-clusters", 5]
    assert invoke("discover", *given, "--no-train", "--out", tmp_path / "run", "--device", "cpu").exit_code == 0
    return tmp_path / "run"


def test_every_image_is_in_the_folder_of_its_category(run: Path, photos, tmp_path: Path) -> None:
    found = invoke("export", run, "--to", "imagefolder", "--out", tmp_path / "sorted", "--json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout) == {"out": str(tmp_path / "sorted"), "format": "imagefolder"}
    files = list((tmp_path / "sorted").rglob("*.png"))
    assert sorted(file.name for file in files) == sorted(photos.truth)
    assert {file.parent.name for file in files} >= {"red", "green", "blue"}
    assert all(file.resolve().parent == photos.folder for file in files)


def test_mistakes_are_one_line(run: Path, tmp_path: Path) -> None:
    for arguments, code, word in (
        ([run, "--to", "csvv", "--out", tmp_path / "out"], 2, "did you mean 'csv'"),
        ([run, "--to", "csv", "--out", run], 2, "holds files already"),
        ([tmp_path, "--to", "csv", "--out", tmp_path / "out"], 3, "no run here"),
        ([run, "--to", "hf", "--out", tmp_path / "out", "--images", tmp_path / "gone"], 3, "is not there"),
    ):
        found = invoke("export", *arguments)
        assert (found.exit_code, found.stdout) == (code, ""), found.stderr
        assert word in found.stderr
        assert "Traceback" not in found.stderr
    assert not (tmp_path / "out").exists()
