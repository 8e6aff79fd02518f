"""The report of a run with two answers: what it is called, and what it says of a training that was not used."""

import shutil
from pathlib import Path

import pytest

from shoal.report.figures.curves import training_curves
from shoal.report.page import render_report
from shoal.runs import Run
from small_runs import append_metrics


@pytest.fixture
def birds(small: Run, tmp_path: Path) -> Run:
    """A copy of a run under a name of its own, with an answer inside."""
    for place in ("birds", "birds/frozen", "birds/trained", "frozen"):
        shutil.copytree(small.path, tmp_path / place, dirs_exist_ok=True)
    return Run(tmp_path / "birds")


@pytest.mark.slow
def test_an_answer_inside_a_run_goes_by_the_name_of_the_run(birds: Run) -> None:
    pages = {
        name: render_report(Run(birds.path / name))
        for name in (".", "frozen", "trained", "../frozen")
    }
    assert " · birds</title>" in pages["."]
    assert " · birds: the answer without training</title>" in pages["frozen"]
    assert " · birds: the trained answer</title>" in pages["trained"]
    assert " · frozen</title>" in pages["../frozen"], "a folder that happens to have that name"


@pytest.mark.parametrize(("kept", "is_marked"), [("frozen", True), ("trained", False)])
def test_the_curves_of_a_training_that_was_not_used_say_so(
    birds: Run, kept: str, is_marked: bool
) -> None:
    append_metrics(birds, {"epoch": 1, "loss": 2.0, "is_best": True})
    assert training_curves(birds).axes[0].get_title(loc="right") == ""
    birds.write_json(
        "choice", {"kept": kept, "n_images": 9, "accuracy": {"frozen": 0.9, "trained": 0.8}}
    )
    title = training_curves(birds).axes[0].get_title(loc="right")
    assert title == ("not used: the answer without training stands" if is_marked else "")
