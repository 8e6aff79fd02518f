"""`shoal evaluate`: score a run by true classes."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from commands import shoal
from shoal.arrays import digest_rows
from shoal.runs import Assignment, Category, Run

TRUTH = {"a": "cat", "b": "cat", "c": "dog", "d": "owl", "e": "owl", "f": "owl"}
FOUND = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 0}
NAMES = ("cat", "novel-001")


@dataclass(frozen=True)
class Nothing:
    """No settings."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Image a is labeled; b, c and f are in the category cat, d and e in a novel category."""
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
    return shoal("evaluate", run.path, "--truth", truth, *flags)


def test_only_unlabeled_images_count_and_clusters_are_matched_once(
    run: Run, tmp_path: Path
) -> None:
    """novel-001 is matched with owl, which is correct for d and e. The category cat has one
    unlabeled image of each class and is matched with cat or dog, so 0 or 1 of 1 known image and 2
    or 3 of 4 novel images are correct."""
    found = evaluate(run, write_truth(tmp_path / "truth.csv", TRUTH))
    assert found.exit_code == 0, found.stderr
    assert found.stdout == (
        "All 60.0 / Known 50.0 / Novel 62.5 on 5 unlabeled images of 3 true classes; 2 categories "
        "found\n"
    )


def test_json_output_and_accuracy_json_have_the_same_numbers(run: Run, tmp_path: Path) -> None:
    found = json.loads(evaluate(run, write_truth(tmp_path / "truth.csv", TRUTH), "--json").stdout)
    assert (found["all"], found["known"], found["novel"]) == (0.6, 0.5, 0.625)
    assert (found["n_images"], found["n_classes"], found["n_clusters"]) == (5, 3, 2)
    kept = run.json("accuracy")
    assert kept.pop("categories") == digest_rows(
        np.array([row.category_id for row in run.assignments])
    )
    assert kept == found


def test_images_without_a_true_class_are_left_out(run: Run, tmp_path: Path) -> None:
    some = {name: label for name, label in TRUTH.items() if name in ("a", "b", "d")}
    found = json.loads(evaluate(run, write_truth(tmp_path / "t.csv", some), "--json").stdout)
    assert (found["n_images"], found["all"]) == (2, 1.0)


@pytest.mark.parametrize("truth", ["x,cat\n", "a,cat\n", "b,\nc,\n", "b,cat\nb,dog\n", ""])
def test_an_invalid_truth_is_refused_in_one_line(run: Run, tmp_path: Path, truth: str) -> None:
    (tmp_path / "truth.csv").write_text(f"path,label\n{truth}")
    found = evaluate(run, tmp_path / "truth.csv")
    assert (found.exit_code, found.stdout) == (3, "")
    assert "Traceback" not in found.stderr
    assert not run.has("accuracy.json")
