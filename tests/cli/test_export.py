"""`shoal export`: export a run for other programs."""

import json
from pathlib import Path

import pytest

from commands import shoal
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def photos(same_photos):
    return same_photos


@pytest.fixture
def run(discover_same) -> Path:
    return discover_same()


def test_every_image_is_exported_to_the_folder_of_its_category(
    run: Path, photos, tmp_path: Path
) -> None:
    found = shoal("export", run, "--to", "imagefolder", "--out", tmp_path / "sorted", "--json")
    assert found.exit_code == 0, found.stderr
    n = sum(row.label_given not in ("", row.category) for row in Run.open(run).assignments)
    facts = {
        "out": str(tmp_path / "sorted"),
        "format": "imagefolder",
        "n_disagreeing": n,
    }
    assert json.loads(found.stdout) == facts
    files = list((tmp_path / "sorted").rglob("*.png"))
    assert sorted(file.name for file in files) == sorted(photos.truth)
    assert {file.parent.name for file in files} >= {"red", "green", "blue"}
    assert all(file.resolve().parent == photos.folder for file in files)


def test_user_errors_are_one_line(run: Path, photos, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, code in (
        ([run, "--to", "csvv", "--out", out], 2),
        ([run, "--to", "csv", "--out", run], 2),
        ([tmp_path, "--to", "csv", "--out", out], 3),
        ([run, "--to", "hf", "--out", out, "--images", tmp_path / "gone"], 3),
        ([run, "--to", "hf", "--out", photos.folder / "sorted"], 2),
    ):
        found = shoal("export", *arguments)
        assert (found.exit_code, found.stdout) == (code, ""), found.stderr
        assert len(found.stderr.splitlines()) == 1
    assert not out.exists()
