"""`shoal evaluate`: a run against the truth."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from shoal.checksums import digest_rows
from shoal.cli.main import app
from shoal.runs import Assignment, Category, Run

TRUTH = {"a": "cat", "b": "cat", "c": "dog", "d": "owl", "e": "owl", "f": "owl"}
FOUND = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 0}
NAMES = ("cat", "novel-001")


@dataclass(frozen=True)
class Nothing:
    """No settings."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Image a is labeled; of the other five b, c and f were put with the cats, d and e in a novel category."""
    run = Run.create(tmp_path / "run")
    run.start(Nothing(), seed=0, device="cpu", command="")
    run.write_assignments(
        Assignment(
            path=name,
            label_given="cat" if name == "a" else "",
            category_id=category,
            category=NAMES[category],
            is_novel=category == 1,
            confidence=1.0,
            outlier_score=0.0,
        )
        for name, category in FOUND.items()
    )
    run.write_categories(
        Category(category_id=i, category=name, is_novel=i == 1, size=3, n_labeled=0, confidence=1.0)
        for i, name in enumerate(NAMES)
    )
    run.finish()
    return run


def write_truth(file: Path, truth: dict[str, str]) -> Path:
    file.write_text("path,label\n" + "".join(f"{name},{label}\n" for name, label in truth.items()))
    return file


def evaluate(run: Run, truth: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", str(run.path), "--truth", str(truth), *flags])


def test_only_unlabeled_images_count_and_clusters_are_matched_once(
    run: Run, tmp_path: Path
) -> None:
    """Matched: novel-001 with owl, which is right for d and e; the cats' cluster, with one unlabeled image of each
    class, with cat or with dog: so between none and 1 of 1 known image is right, and between 2 and 3 of 4 novel ones.
    """
    found = evaluate(run, write_truth(tmp_path / "truth.csv", TRUTH))
    assert found.exit_code == 0, found.stderr
    assert found.stdout == (
        "All 60.0 / Known 50.0 / Novel 62.5 on 5 unlabeled images; 2 categories found, 3 true classes among them\n"
    )
    assert (
        found.stderr == f"written to {run.path / 'accuracy.json'}; next: shoal report {run.path}\n"
    )


def test_json_holds_the_same_numbers_and_they_are_kept_with_the_run(
    run: Run, tmp_path: Path
) -> None:
    found = json.loads(evaluate(run, write_truth(tmp_path / "truth.csv", TRUTH), "--json").stdout)
    assert (found["all"], found["known"], found["novel"]) == (0.6, 0.5, 0.625)
    assert (found["n_images"], found["n_classes"], found["n_clusters"]) == (5, 3, 2)
    kept = run.json("accuracy")
    assert kept.pop("categories") == digest_rows(
        np.array([row.category_id for row in run.assignments])
    )
    assert kept == found


def test_columns_of_other_names_are_named_by_the_flags_that_the_error_asks_for(
    run: Run, tmp_path: Path
) -> None:
    table = write_truth(tmp_path / "truth.csv", TRUTH)
    table.write_text(table.read_text().replace("path,label", "photo,species"))
    refused = evaluate(run, table)
    assert refused.exit_code == 3
    assert "no label column" in refused.stderr
    assert "name it with --label-column" in refused.stderr
    found = evaluate(run, table, "--label-column", "species", "--path-column", "photo")
    assert found.exit_code == 0, found.stderr
    assert found.stdout.startswith("All 60.0 / Known 50.0 / Novel 62.5")


def test_images_without_a_true_class_are_left_out(run: Run, tmp_path: Path) -> None:
    some = {name: label for name, label in TRUTH.items() if name in ("a", "b", "d")}
    found = json.loads(evaluate(run, write_truth(tmp_path / "t.csv", some), "--json").stdout)
    assert (found["n_images"], found["all"]) == (2, 1.0)


def test_where_no_novel_image_has_a_class_there_is_no_novel_accuracy(
    run: Run, tmp_path: Path
) -> None:
    found = json.loads(
        evaluate(run, write_truth(tmp_path / "t.csv", {"a": "cat", "b": "cat"}), "--json").stdout
    )
    assert found["novel"] is None


def test_names_spelled_differently_are_said_and_not_only_a_missing_accuracy(
    run: Run, tmp_path: Path
) -> None:
    truth = {name: label.upper() for name, label in TRUTH.items()}
    found = evaluate(run, write_truth(tmp_path / "truth.csv", truth))
    assert found.exit_code == 0
    notes = [line for line in found.stderr.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: the truth names another class than the run was given for 1 labeled image, such as a: 'CAT', given 'cat'",
        "note: no true class of the unlabeled images is a known category, so there is no Known accuracy; are they "
        "spelled alike? true: CAT, DOG, OWL; known: cat",
    ]
    assert "Known – / " in found.stdout


def test_rows_of_the_truth_that_name_no_image_of_the_run_are_counted(
    run: Run, tmp_path: Path
) -> None:
    table = write_truth(tmp_path / "truth.csv", TRUTH | {"x": "cat", "y": "dog"})
    found = evaluate(run, table)
    assert found.stdout.startswith("All 60.0 / Known 50.0 / Novel 62.5")
    note = (
        "note: 2 rows name images that are not there (truth.csv, line 8: x; truth.csv, line 9: y)"
    )
    assert found.stderr.splitlines()[0] == note


@pytest.mark.parametrize(
    ("truth", "code", "word"),
    [
        ("path,label\nx,cat\n", 3, "has none of the 6 names"),
        ("path,label\na,cat\n", 3, "a class for none of the 5 unlabeled images"),
        ("path,label\nb,\nc,\n", 3, "a class for none of the 5 unlabeled images"),
        ("path,label\nb,cat\nb,dog\n", 3, "line 3"),
        ("", 3, "empty"),
    ],
)
def test_a_truth_that_cannot_be_used_is_one_line(
    run: Run, tmp_path: Path, truth: str, code: int, word: str
) -> None:
    (tmp_path / "truth.csv").write_text(truth)
    found = evaluate(run, tmp_path / "truth.csv")
    assert (found.exit_code, found.stdout) == (code, "")
    assert word in found.stderr
    assert "Traceback" not in found.stderr
    assert not run.has("accuracy.json")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    found = evaluate(Run(tmp_path), write_truth(tmp_path / "truth.csv", TRUTH))
    assert found.exit_code == 3
    assert "no run here" in found.stderr


def test_a_run_whose_images_were_all_labeled_has_nothing_to_score(run: Run, tmp_path: Path) -> None:
    rows = [replace(row, label_given="cat") for row in run.assignments]
    run.write_assignments(rows)
    found = evaluate(Run.open(run.path), write_truth(tmp_path / "truth.csv", TRUTH))
    assert (found.exit_code, found.stdout) == (3, "")
    assert "all of its 6 images were labeled, so nothing is unlabeled" in " ".join(
        found.stderr.split()
    )
