"""`shoal demo`: offline, with a score."""

import json
from pathlib import Path

import pytest

from commands import shoal


@pytest.mark.slow
def test_it_ends_with_the_score_and_may_be_repeated(tmp_path: Path) -> None:
    command = ["demo", "--out", str(tmp_path / "demo"), "--no-train", "--device", "cpu"]
    plain = shoal(*command)
    assert plain.exit_code == 0, plain.stderr
    again = shoal(*command, "--seed", "1", "--json")
    found = json.loads(again.stdout)
    assert {"run", "answer", "all", "known", "novel", "n_clusters"} <= set(found)
    assert (tmp_path / "demo" / "report.html").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    run = shoal("demo", "--out", tmp_path)
    assert run.exit_code == 2
    assert "holds files but no run" in run.stderr
