"""The script that compares two commits: it finds nothing where nothing changed, and names what did."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import regression


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run some of its cases in a process of their own, as users do."""
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


def test_what_is_stored_of_a_folder_leaves_out_where_and_when_it_was_written(
    tmp_path: Path,
) -> None:
    records = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        facts = {"n_clusters": 8, "seconds": len(records), "root": str(folder / "photos")}
        (folder / "facts.json").write_text(json.dumps(facts))
        (folder / "train.log").write_text(
            f"2026-01-0{len(records) + 1}T10:00:00 took 1{name[:0]} s"
        )
        records.append(regression.record(folder, folder))
    assert records[0] == records[1]
    assert records[0]["facts.json"]["content.n_clusters"] == 8
