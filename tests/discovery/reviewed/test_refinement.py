"""`shoal.refine`: a run, its review, and the refined run."""

import json
import shutil
from pathlib import Path

import pytest

import shoal
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.results import collect_facts
from shoal.discovery.reviewed.refinement import Refinement
from shoal.errors import DataError, UsageError
from shoal.runs import Run
from small_runs import write_small

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"device": "cpu", "verbose": False}
TIMED = {"provenance.json", "train.log", "report.html", "metrics.jsonl", "review.jsonl"}


def stop(*_given: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def reviewed(discover_same, tmp_path: Path) -> DiscoveredRun:
    """A reviewed run of 60 photos in 5 colors, 3 of them known. One novel category is confirmed and
    named, another confirmed. An image is rejected from a known category and one moved to a known
    category, both wrongly: decisions count even if the embeddings disagree."""
    (tmp_path / "runs").mkdir()
    run = shoal.load(discover_same().rename(tmp_path / "runs" / "photos"))
    first, second = (row.category for row in run.categories if row.is_novel)
    run.rename(first, "teal")
    run.confirm("teal")
    run.confirm(second)
    unlabeled = {
        name: [row.path for row in run.assignments if row.category == name and not row.label_given]
        for name in ("red", second)
    }
    run.reject(unlabeled["red"][:1])
    run.move(unlabeled[second][:1], "green")
    return run


def by_path(run: Run) -> dict[str, tuple[str, str, str]]:
    return {row.path: (row.category, row.label_given, row.status) for row in run.assignments}


def test_a_fully_decided_review_is_refused_with_the_export_command(
    reviewed: DiscoveredRun,
) -> None:
    for category in reviewed.categories:
        if any(
            row.category == category.category and row.status == "predicted"
            for row in reviewed.assignments
        ):
            reviewed.confirm(category.category)
    reviewed.move([row.path for row in reviewed.assignments if row.status == "rejected"], "red")
    with pytest.raises(
        DataError,
        match=r"`shoal export .*photos ",
    ):
        shoal.refine(reviewed, **OPTIONS)


def test_decisions_hold_in_the_next_run(reviewed: DiscoveredRun, tmp_path: Path) -> None:
    before = by_path(reviewed)
    ids = {row.category: row.category_id for row in reviewed.categories}
    run = shoal.refine(reviewed, **OPTIONS)
    assert run.path == tmp_path / "runs" / "photos-2"
    assert {row.category: row.category_id for row in run.categories} == ids
    assert not any(row.is_novel for row in run.categories)
    machine = by_path(Run(run.path))  # the run's own result, without the review
    decided = {path: row for path, row in before.items() if row[2] in ("confirmed", "moved")}
    assert len(decided) > 20
    for path, (category, _, status) in decided.items():
        assert machine[path][:2] == (category, category), path
        assert by_path(run)[path][2] == status
    (rejected,) = (path for path, row in before.items() if row[2] == "rejected")
    assert machine[rejected][0] not in ("red", "")
    assert machine[rejected][1] == ""
    given = {path: row[1] for path, row in before.items() if row[1]}
    assert {path: machine[path][1] for path in given} == given
    changes = json.loads((run.path / "changes.json").read_text())
    assert changes["became_known"] == [
        name for name in ids if name in {row[0] for row in decided.values()} - {"green"}
    ]
    assert changes["cannot_links"] == {rejected: [ids["red"]]}
    (second,) = (row.second_category for row in Run(run.path).assignments if row.path == rejected)
    assert second not in ("red", machine[rejected][0])
    assert changes["not_applied"] == []
    assert changes["n_decided"] == len(decided)


@pytest.mark.slow
def test_a_rejection_holds_in_later_runs(reviewed: DiscoveredRun, tmp_path: Path) -> None:
    (rejected,) = (row.path for row in reviewed.assignments if row.status == "rejected")
    second = shoal.refine(reviewed, **OPTIONS)
    second.flag([row.path for row in second.assignments if row.category == "red"][:1])
    third = shoal.refine(second.path, **OPTIONS)
    assert third.path == tmp_path / "runs" / "photos-3"
    assert by_path(Run(third.path))[rejected][0] != "red"
    assert (
        Refinement.open(third.path).decisions.cannot_links
        == Refinement.open(second.path).decisions.cannot_links
        != {}
    )
    rows, _ = third.assigner(device="cpu").assign(Path(third.provenance["root"]) / rejected)
    assert rows[0].category_id in {row.category_id for row in third.categories}


def test_merged_and_split_categories_are_kept(reviewed: DiscoveredRun, photos) -> None:
    """Two known categories are merged: ids have a gap, their labels are merged, and new images are
    assigned to them."""
    reviewed.merge(["red", "green"])
    images = sorted(row.path for row in reviewed.assignments if row.category == "red")
    with pytest.warns(UserWarning, match="labeled red"):
        reviewed.split("red", {"dark red": images[:8]})
    reviewed.confirm("dark red")
    run = shoal.refine(reviewed, photos.folder, **OPTIONS)
    ids = {row.category: row.category_id for row in run.categories}
    assert ids == {row.category: row.category_id for row in reviewed.categories}
    assert "green" not in ids
    assert max(ids.values()) == 5
    machine = by_path(Run(run.path))
    assert {path for path, row in machine.items() if row[0] == "dark red"} >= set(images[:8])
    assert {row[1] for row in machine.values()} == {"", *ids}
    (rows,) = run.predict([photos.folder / images[0]], device="cpu")
    assert rows.category_id in ids.values()


@pytest.mark.slow
def test_new_images_and_new_labels_are_used(reviewed: DiscoveredRun, photos) -> None:
    new = shutil.copy(photos.folder / sorted(photos.truth)[0], photos.folder / "zzz.png")
    labels = {path: row[1] for path, row in by_path(reviewed).items() if row[1]} | {
        "zzz.png": "violet"
    }
    run = shoal.refine(reviewed, photos.folder, labels, **OPTIONS)
    assert by_path(run)[Path(new).name] == ("violet", "violet", "predicted")
    assert run.categories[-1].category == "violet"
    assert run.categories[-1].category_id == 1 + max(row.category_id for row in reviewed.categories)
    assert run.provenance["n_images"] == 61
    settings = run.config
    assert settings["n_clusters"] == 6  # more categories are known than were requested


@pytest.mark.slow
def test_a_killed_refinement_with_training_resumes_to_the_same_result(
    reviewed: DiscoveredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shoal.refine(reviewed, out=tmp_path / "whole", train=True, **OPTIONS)
    places = (
        "trained.trained_result.name_categories",
        "reviewed.refinement.replay_review",
        "api.write_report",
    )
    for at, place in enumerate(f"shoal.discovery.{place}" for place in places):
        out = tmp_path / f"killed-{at}"
        with monkeypatch.context() as patched:
            patched.setattr(place, stop)
            with pytest.raises(KeyboardInterrupt):
                shoal.refine(reviewed, out=out, train=True, **OPTIONS)
        run = shoal.refine(reviewed, out=out, train=True, resume=True, **OPTIONS)
        files = {file.name for file in whole.path.iterdir() if file.is_file()}
        assert {file.name for file in run.path.iterdir() if file.is_file()} == files
        assert {"changes.json", "review.jsonl"} <= files
        for name in files - TIMED:
            assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), (place, name)
        assert by_path(run) == by_path(whole)


def test_a_refinement_cannot_be_resumed_after_the_review_changed(
    reviewed: DiscoveredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("shoal.discovery.api.write_report", stop)
        with pytest.raises(KeyboardInterrupt):
            shoal.refine(reviewed, **OPTIONS)
    reviewed.confirm("blue" if "blue" in {row.category for row in reviewed.categories} else "green")
    with pytest.raises(UsageError, match="other images or labels"):
        shoal.refine(reviewed, resume=True, **OPTIONS)


def test_invalid_refinements_are_refused_with_a_remedy(
    reviewed: DiscoveredRun, photos, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is the reviewed run itself"):
        shoal.refine(reviewed, out=reviewed.path, force=True, **OPTIONS)
    (tmp_path / "taken").mkdir()
    shutil.copy(reviewed.path / "review.jsonl", tmp_path / "taken")
    with pytest.raises(UsageError, match="has a review of its own"):
        shoal.refine(reviewed, out=tmp_path / "taken", force=True, **OPTIONS)
    others = tmp_path / "others"
    others.mkdir()
    for name in sorted(photos.truth)[:40]:
        shutil.copy(photos.folder / name, others)
    with pytest.raises(DataError, match=r"20 of its 60 images are missing.*allow_missing=True"):
        shoal.refine(reviewed, others, **OPTIONS)
    for at, file in enumerate(sorted(others.iterdir())):
        file.rename(others / f"{at}.png")
    with pytest.raises(DataError, match="60 of its 60 images are missing"):
        shoal.refine(reviewed, others, allow_missing=True, **OPTIONS)
    Run(reviewed.path).note(root=str(tmp_path / "moved" / "photos"))
    with pytest.raises(DataError, match=r"were in .*photos, which does not exist; give the images"):
        shoal.refine(reviewed, **OPTIONS)
    log = (reviewed.path / "review.jsonl").rename(tmp_path / "away")
    with pytest.raises(UsageError, match="found no review"):
        shoal.refine(reviewed, **OPTIONS)
    log.rename(reviewed.path / "review.jsonl")
    config = reviewed.path / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: first"))
    with pytest.raises(
        DataError, match=r"config.yaml: damaged or edited, .*seed: found 'first', expected"
    ):
        shoal.refine(reviewed, **OPTIONS)
    Run(reviewed.path).write_json("changes", {"cannot_links": [1]})
    with pytest.raises(DataError, match=r"changes\.json: damaged or edited"):
        shoal.refine(reviewed, **OPTIONS)
    Run(reviewed.path).note(finished=None)
    with pytest.raises(DataError, match="was not finished"):
        shoal.refine(reviewed, **OPTIONS)
    write_small(tmp_path / "embeddings")
    with pytest.raises(UsageError, match="made from precomputed embeddings"):
        shoal.refine(tmp_path / "embeddings", **OPTIONS)


@pytest.mark.slow
def test_the_number_of_categories_is_that_of_the_review_unless_requested(
    reviewed: DiscoveredRun, tmp_path: Path
) -> None:
    """The reviewed run was made with --n-clusters 5."""
    reviewed.merge(["red", "green"])
    left = {row.category: row.category_id for row in reviewed.categories}
    run = shoal.refine(reviewed, **OPTIONS)
    assert {row.category: row.category_id for row in run.categories} == left
    assert run.config["n_clusters"] == run.n_clusters == 4
    assert run.json("estimate")["rule"] == "the review"
    assert collect_facts(run)["estimate"]["doubt"] is None
    assert shoal.refine(reviewed, out=tmp_path / "more", n_clusters=5, **OPTIONS).n_clusters == 5
