"""`shoal export`: a run for other programs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def photos(same_photos):
    return same_photos


@pytest.fixture
def run(discover_same) -> Path:
    return discover_same()


def test_every_image_is_in_the_folder_of_its_category(run: Path, photos, tmp_path: Path) -> None:
    found = invoke("export", run, "--to", "imagefolder", "--out", tmp_path / "sorted", "--json")
    assert found.exit_code == 0, found.stderr
    n = sum(row.label_given not in ("", row.category) for row in Run.open(run).assignments)
    facts = {
        "out": str(tmp_path / "sorted"),
        "format": "imagefolder",
        "n_disagreeing": n,
        "given_labels": "keep",
    }
    assert json.loads(found.stdout) == facts
    files = list((tmp_path / "sorted").rglob("*.png"))
    assert sorted(file.name for file in files) == sorted(photos.truth)
    assert {file.parent.name for file in files} >= {"red", "green", "blue"}
    assert all(file.resolve().parent == photos.folder for file in files)


def test_it_says_how_many_labels_disagree_and_what_to_do_in_label_studio(
    run: Path, photos, tmp_path: Path
) -> None:
    opened = Run.open(run)
    rows = opened.assignments
    novel = next(found for found in opened.categories if found.is_novel)
    category = {"category_id": novel.category_id, "category": novel.category, "is_novel": True}
    opened.write_assignments([replace(rows[0], label_given="red", **category), *rows[1:]])
    found = invoke("export", run, "--to", "labelstudio", "--out", tmp_path / "tasks")
    assert (
        "1 image came with another label than the category found: the label was kept\n"
        in found.stderr
    )
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={photos.folder.parent}\n" in found.stderr
    assert found.stdout == f"{tmp_path / 'tasks'}\n"
    taken = invoke(
        "export", run, "--to", "csv", "--out", tmp_path / "csv", "--given-labels", "predicted"
    )
    assert (
        "1 image came with another label than the category found: the category was taken\n"
        in taken.stderr
    )


def test_the_next_command_is_one_that_the_run_takes(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.random.default_rng(0).normal(size=(30, 4)))
    assert (
        invoke(
            "cluster", tmp_path / "x.npz", "--n-clusters", 3, "--out", tmp_path / "rows"
        ).exit_code
        == 0
    )
    for made, new in ((run, "new/ puts images"), (tmp_path / "rows", "new.npz puts embeddings")):
        found = invoke("export", made, "--to", "csv", "--out", tmp_path / f"{made.name}-csv")
        assert f"next: shoal assign {made} {new} that come later" in found.stderr
    assert invoke("assign", tmp_path / "rows", tmp_path / "x.npz").exit_code == 0


def test_mistakes_are_one_line(run: Path, photos, tmp_path: Path) -> None:
    for arguments, code, word in (
        ([run, "--to", "csvv", "--out", tmp_path / "out"], 2, "did you mean 'csv'"),
        (
            [run, "--to", "csv", "--out", tmp_path / "out", "--given-labels", "x"],
            2,
            "expected keep or predicted",
        ),
        ([run, "--to", "csv", "--out", run], 2, "holds files already"),
        ([tmp_path, "--to", "csv", "--out", tmp_path / "out"], 3, "no run here"),
        (
            [run, "--to", "hf", "--out", tmp_path / "out", "--images", tmp_path / "gone"],
            3,
            "is not there",
        ),
        ([run, "--to", "hf", "--out", photos.folder / "sorted"], 2, "would find every image twice"),
    ):
        found = invoke("export", *arguments)
        assert (found.exit_code, found.stdout) == (code, ""), found.stderr
        assert word in found.stderr
        assert "Traceback" not in found.stderr
    assert not (tmp_path / "out").exists()
