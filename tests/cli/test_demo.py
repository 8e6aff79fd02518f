"""`shoal demo`: offline, with a score."""

import json
from pathlib import Path

import pytest

from commands import shoal


@pytest.mark.slow
def test_the_demo_prints_a_score_and_can_be_repeated(tmp_path: Path) -> None:
    command = ["demo", "--out", str(tmp_path / "demo"), "--no-train", "--device", "cpu"]
    plain = shoal(*command)
    assert plain.exit_code == 0, plain.stderr
    again = shoal(*command, "--json")
    found = json.loads(again.stdout)
    assert {"run", "summary", "all", "known", "novel", "n_clusters"} <= set(found)
    assert (tmp_path / "demo" / "report.html").exists()


def test_another_run_is_not_overwritten_by_the_demo(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    run = shoal("demo", "--out", tmp_path)
    assert run.exit_code == 2
    assert "contains files but no run" in run.stderr
