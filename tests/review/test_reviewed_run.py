"""A run is read, exported, reported, scored and used to assign new images with the decisions of its
review; its files do not change."""

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal import load
from shoal.cli.main import app
from shoal.discovery.assign import Assigner
from shoal.discovery.discovered_run import score_run
from shoal.discovery.export.formats import export_run
from shoal.report.page import render_report
from shoal.review import verbs
from shoal.review.review import OtherResult, Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Run, read_rows
from small_runs import NAMES, points, write_small


@pytest.fixture
def reviewed(run: Run) -> ReviewedRun:
    """A review with a renamed category, merged novel categories, a confirmed heron, a rejected gull
    and a heron moved to a new category."""
    review = Review(run)
    review.act(verbs.rename, "gull", "herring gull", by="ann")
    review.act(verbs.merge, ["novel-001", "novel-002"], by="ann")
    review.act(verbs.decide, "confirm", None, ["04.png"], by="bob")
    review.act(verbs.decide, "reject", None, ["02.png"], by="bob")
    review.act(verbs.decide, "flag", None, ["07.png"], by="bob")
    review.act(verbs.move, ["05.png"], "egret", by="bob")
    return ReviewedRun.open(run.path)


def test_the_tables_are_current_and_the_files_those_of_the_run(
    reviewed: ReviewedRun, run: Run
) -> None:
    before = Run(run.path)
    assert [row.category for row in before.assignments] == [NAMES[at // 3] for at in range(12)]
    rows = reviewed.assignments
    novel = ["novel-001"] * 6
    assert [row.category for row in rows] == ["herring gull"] * 2 + [
        "",
        "heron",
        "heron",
        "egret",
    ] + novel
    assert [row.category_id for row in rows] == [0, 0, -1, 1, 1, 4] + [2] * 6
    assert [row.status for row in rows] == ["predicted"] * 2 + [
        "rejected",
        "predicted",
        "confirmed",
        "moved",
    ] + ["predicted", "flagged"] + ["predicted"] * 4
    assert [rows[at].classified_by for at in (0, 2, 4, 5)] == ["", "bob", "bob", "bob"]
    assert rows[4].classified_at.endswith("+00:00")
    assert [rows[at].confidence for at in (2, 4, 5)] == [0.0, 1.0, 1.0]
    assert rows[0].label_given == "herring gull"  # the label has the new name of its category
    assert [row.is_novel for row in rows] == [False] * 5 + [True] * 7  # 02.png was rejected
    assert [row.second_category for row in rows] == ["heron"] * 3 + ["novel-001"] * 3 + [""] * 3 + [
        "herring gull"
    ] * 3
    found = {
        c.category: (c.category_id, c.size, c.is_novel, c.exemplars) for c in reviewed.categories
    }
    assert found == {
        "herring gull": (0, 2, False, ("00.png", "01.png")),
        "heron": (1, 2, False, ("03.png", "04.png")),
        "novel-001": (2, 6, True, ("06.png", "07.png", "08.png", "09.png", "10.png")),
        "egret": (4, 1, True, ("05.png",)),
    }
    assert (reviewed.n_known, reviewed.n_novel) == (2, 2)
    assert load(run.path).to_pandas()["status"].tolist()[2] == "rejected"


def test_a_run_without_a_review_is_read_as_it_is(run: Run) -> None:
    assert ReviewedRun.open(run.path).assignments == run.assignments
    assert repr(ReviewedRun.open(run.path).categories) == repr(
        run.categories
    )  # NaN is not equal to itself


@pytest.fixture
def photos(run: Run, tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    root.mkdir()
    for row in run.assignments:
        (root / row.path).write_bytes(row.path.encode())
    run.note(root=str(root), folders=["."])
    return root


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("imagefolder", "export.csv"),
        ("hf", "metadata.csv"),
        ("fiftyone", "paths.csv"),
        ("projector", "metadata.tsv"),
        ("csv", "assignments.csv"),
        ("spreadsheet", "assignments.csv"),
    ],
)
def test_every_exported_table_says_who_decided_what_and_when(
    reviewed: ReviewedRun, tmp_path: Path, name: str, file: str
) -> None:
    export_run(reviewed, name, tmp_path / "out")
    text = (tmp_path / "out" / file).read_text("utf-8-sig")
    rows = csv.DictReader(text.splitlines(), delimiter="\t" if name == "projector" else ",")
    found = {row.get("path") or row["file_name"]: row for row in rows}
    decided = [
        (found[path]["status"], found[path]["classified_by"])
        for path in ("00.png", "02.png", "05.png")
    ]
    assert decided == [("predicted", ""), ("rejected", "bob"), ("moved", "bob")]
    assert found["05.png"]["classified_at"].endswith("+00:00")


def test_a_novel_category_without_images_is_no_known_one_and_no_choice(
    run: Run, tmp_path: Path
) -> None:
    review = Review(run)
    review.act(verbs.move, ["06.png", "07.png", "08.png"], "gull")
    review.act(verbs.move, ["09.png"], "tern")
    review.act(verbs.move, ["09.png"], "novel-002")
    choices = (
        export_run(ReviewedRun.open(run.path), "labelstudio", tmp_path / "out").folder
        / "labels.xml"
    )
    found = re.findall(r'<Choice value="(.*)"/>', choices.read_text())
    assert found == ["gull", "heron", "novel-002"]


def test_a_label_that_a_person_overruled_is_not_kept(run: Run, tmp_path: Path) -> None:
    review = Review(run)
    review.act(verbs.move, ["00.png"], "heron")  # its given label is gull
    review.act(verbs.move, ["03.png"], "gull")
    review.undo()
    found = export_run(ReviewedRun.open(run.path), "csv", tmp_path / "csv")
    assert found.n_disagreeing == 0
    assert read_rows(Assignment, tmp_path / "csv" / "assignments.csv")[0].category == "heron"


def test_the_score_is_that_of_the_reviewed_categories(run: Run) -> None:
    truth = {f"{row:02d}.png": ("gull", "heron", "tern", "tern")[row // 3] for row in range(12)}
    before = score_run(ReviewedRun.open(run.path), truth).accuracy
    review = Review(run)
    review.act(verbs.merge, ["novel-001", "novel-002"])
    review.act(
        verbs.rename, "gull", "herring gull"
    )  # the truth lacks the new name, but gull is still a known class
    score = score_run(ReviewedRun.open(run.path), truth)
    assert (before.all, score.accuracy.all, score.accuracy.known) == (0.7, 1.0, 1.0)
    assert score.notes == ()
    review.act(
        verbs.decide, "reject", None, ["01.png", "02.png"]
    )  # rejected images do not form a category
    found = score_run(ReviewedRun.open(run.path), truth).accuracy
    assert (found.all, found.known, found.novel) == (0.8, 0.5, 1.0)


def test_the_report_says_where_the_review_went_on_after_the_score(run: Run) -> None:
    """The score is outdated once the review has changed the categories; confirming and renaming
    do not change it."""
    outdated = "measured before the last review; run `shoal evaluate` to update it"
    truth = {f"{row:02d}.png": ("gull", "heron", "tern", "tern")[row // 3] for row in range(12)}
    score_run(ReviewedRun.open(run.path), truth)
    review = Review(run)
    review.act(verbs.decide, "confirm", "gull", None)
    review.act(verbs.rename, "novel-001", "tern")
    assert outdated not in render_report(Run(run.path))
    review.act(verbs.merge, ["tern", "novel-002"])
    assert outdated in render_report(Run(run.path))
    score_run(ReviewedRun.open(run.path), truth)
    assert outdated not in render_report(Run(run.path))


def test_a_classifier_decides_about_no_category_that_people_made_or_emptied(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classifier predicts the categories of the run: gull, heron, novel-001 and novel-002, of
    three images each."""
    (run.path / "config.yaml").write_text("inference: {shift: {n_neighbors: 3}}\n")
    review = Review(run)
    review.act(verbs.move, ["03.png", "04.png"], "egret")
    review.act(verbs.move, ["09.png", "10.png", "11.png"], "skua")
    run.note(result="trained")
    run.write_json("model", {"classifier": [0]})
    assigner = Assigner(ReviewedRun.open(run.path), outlier_share=0, device="cpu")
    predicted = np.array(assigner.ids)[[0, 1, 3, 0]]
    vars(assigner)["networks"] = SimpleNamespace(predict=lambda new: predicted)
    found = assigner.assign_embeddings([*"abcd"], points(np.array([0, 1, 3, 2]), seed=5))
    assert [row.category for row in found] == [
        "gull",
        "egret",
        "skua",
        "gull",
    ]  # the last one has no neighbors in egret or skua, so the classifier decides


def test_a_review_of_another_answer_is_refused_where_it_would_be_lost_and_told_in_the_report(
    run: Run,
) -> None:
    Review(run).act(verbs.rename, "gull", "tern")
    Run.create(run.path, force=True)
    write_small(run.path, ids=(1, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3))
    with pytest.raises(OtherResult):
        ReviewedRun.open(run.path)
    done = CliRunner().invoke(
        app, ["export", str(run.path), "--to", "csv", "--out", str(run.path / "out")]
    )
    assert done.exit_code == 3
    assert "replays it" in done.stderr
    assert "The review was made for another result" in render_report(Run(run.path))


def test_python_verbs_write_the_same_log(run: Run) -> None:
    found = load(run.path)
    found.rename("novel-001", "tern")
    found.merge(["tern", "novel-002"])
    found.split("tern", 2)
    found.confirm("gull")
    found.reject(["03.png"])
    found.flag(["04.png"])
    found.move(["05.png"], "egret")
    found.undo()
    found.undo()
    found.redo()
    assert [c.category for c in found.categories] == ["gull", "heron", "tern", "tern (2)"]
    assert [row.status for row in found.assignments][:6] == ["confirmed"] * 3 + [
        "rejected",
        "flagged",
        "predicted",
    ]
    lines = (run.path / "review.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in lines] == [
        "start",
        "rename",
        "merge",
        "split",
        "confirm",
        "reject",
        "flag",
        "create",
        "undo",
        "undo",
        "redo",
    ]
