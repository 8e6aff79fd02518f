"""`shoal discover --review`: output and user errors."""

import json
from pathlib import Path

import pytest

import shoal
from commands import shoal as command

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_discover_continues_from_a_review_and_prints_the_changes(
    photos, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    how = ["--config", str(photos.config), "--no-train", "--n-clusters", "5", "--device", "cpu"]
    first = command("discover", "photos", "--labels", "labels.csv", *how)
    assert first.exit_code == 0, first.stderr
    early = command("discover", "photos", "--review", "runs/photos")
    assert (early.exit_code, early.stdout) == (2, "")
    assert "found no review" in early.stderr
    run = shoal.load("runs/photos")
    novel = next(row.category for row in run.categories if row.is_novel)
    run.rename(novel, "teal")
    run.confirm("teal")
    rejected = next(row.path for row in run.assignments if row.label_given == "red")
    run.reject([rejected])
    dry = command("discover", "--review", "runs/photos", "--dry-run", "--json", "--device", "cpu")
    assert dry.exit_code == 0, dry.stderr
    assert json.loads(dry.stdout)["out"] == "runs/photos-2"
    assert "teal" in json.loads(dry.stdout)["classes"]
    assert not Path("runs/photos-2").exists()
    done = command("discover", "photos", "--review", "runs/photos", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.stderr
    n_teal = sum(row.category == "teal" for row in run.assignments)
    assert f"from the review: {n_teal} labeled images; now known: teal" in done.stderr
    assert " of 60 images changed category" in done.stderr
    assert done.stderr.splitlines()[-1] == "next: shoal review runs/photos-2"
    found = json.loads(done.stdout)["changes"]
    assert (found["became_known"], "cannot_links" in found) == (["teal"], False)
    again = command("discover", "photos", "--review", "runs/photos", "--device", "cpu")
    assert again.exit_code == 0, again.stderr
    forced = command("discover", "photos", "--review", "runs/photos", "--device", "cpu", "--force")
    assert forced.exit_code == 2
    assert "has a review of its own" in forced.stderr
    resumed = command(
        "discover", "--review", "runs/photos", "--device", "cpu", "--resume", "--json"
    )
    assert json.loads(resumed.stdout)["changes"] == found
