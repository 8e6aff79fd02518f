"""The script that compares two commits: it reports all changes, and nothing without a change."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import regression


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run some cases of the script in a separate process, as users do."""
    command = [sys.executable, regression.__file__, "--only", "cluster", "--only", "estimators"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.slow
def test_the_same_twice_is_equal_and_a_changed_value_is_named(tmp_path: Path) -> None:
    stored = tmp_path / "stored.json"
    assert run("--write", stored).returncode == 0
    found = json.loads(stored.read_text())
    assert found["cluster"]["exit-1.json"] == {"content": 0}
    assert run("--compare", stored, "--strict").returncode == 0
    found["cluster"]["run/estimate.json"]["content.n_clusters"] += 1
    found["cluster"]["text"]["stderr-0.txt"] = "other"
    stored.write_text(json.dumps(found))
    compared = run("--compare", stored, "--ignore-text")
    assert compared.returncode == 1
    assert "cluster  run/estimate.json  content.n_clusters" in compared.stdout
    assert "stderr-0.txt" not in compared.stdout


def test_differences_are_changed_gone_or_new() -> None:
    before = {"case": {"file": {"same": 1, "changed": 1, "gone": 1}}}
    after = {"case": {"file": {"same": 1, "changed": 2, "new": 1}}}
    found = list(regression.differences(before, after))
    assert [kind for kind, _ in found] == ["changed", "gone", "new"]
    assert all(kind in where for kind, where in found)


def test_times_and_paths_are_not_stored(tmp_path: Path) -> None:
    records = []
    for day in ("01", "02"):
        folder = tmp_path / day
        folder.mkdir()
        facts = {"n_clusters": 8, "seconds": float(day), "root": f"{folder}/photos"}
        (folder / "facts.json").write_text(json.dumps(facts))
        (folder / "train.log").write_text(f"2026-01-{day}T10:00:00+0000  epoch 1: {day}.5 s")
        records.append(regression.record(folder, folder))
    assert records[0] == records[1]
    assert records[0]["facts.json"]["content.n_clusters"] == 8
