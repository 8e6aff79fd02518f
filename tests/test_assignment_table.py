"""Assignments split into several files have the same rows, and all readers of runs read them."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.discovery.assign import Assigner
from shoal.discovery.cluster_embeddings import cluster_embeddings
from shoal.discovery.export.formats import export_run
from shoal.discovery.results import collect_facts
from shoal.discovery.scoring import score_run
from shoal.errors import DataError, MissingError
from shoal.report.page import render_report
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run, table_files
from small_runs import embedded_five

NAMES = [f"assignments-0000{part}-of-00003.parquet" for part in range(3)]
TRUTH = np.arange(60) % 5


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run of 60 images, with a single table as in all small runs."""
    names = tuple(f'a,"é {i:02d}".png' for i in range(60))
    given = replace(embedded_five(), names=names)
    return cluster_embeddings(given, tmp_path / "run", device="cpu")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split tables into parts of 25 rows, with blocks of 10 rows in memory."""
    monkeypatch.setattr("shoal.runs.file_parts.PART_ROWS", 25)
    monkeypatch.setattr("shoal.runs.assignment_table.BLOCK_ROWS", 10)


def test_parts_hold_the_rows_of_the_table_they_stand_for(run: Run, parts: None) -> None:
    expected = run.assignments
    run.write_assignments(iter(expected), len(expected))
    assert sorted(file.name for file in run.path.glob("assignments*")) == NAMES
    assert [file.name for file in table_files(run.path)] == NAMES
    assert [pq.ParquetFile(run.path / name).metadata.num_rows for name in NAMES] == [25, 25, 10]
    found = Run.open(run.path).assignments
    assert [*found] == [found[row] for row in range(60)] == found[:] == expected
    assert (len(found), found[-1], found[57:]) == (60, expected[-1], expected[57:])
    assert type(found[0].category_id) is int
    assert type(found[0].is_novel) is bool


def test_what_clustering_writes_is_the_same_in_parts(run: Run, parts: None, tmp_path: Path) -> None:
    given = replace(embedded_five(), names=tuple(row.path for row in run.assignments))
    large = cluster_embeddings(given, tmp_path / "large", device="cpu")
    assert not large.has("assignments.csv")
    assert [*large.assignments] == run.assignments
    cluster_embeddings(given, tmp_path / "again", device="cpu")
    for name in NAMES:
        assert (tmp_path / "again" / name).read_bytes() == (large.path / name).read_bytes()


def outputs(run: Run, out: Path) -> dict[str, object]:
    """Return the output of everything that reads a run."""
    truth = {f'a,"é {i:02d}".png': "abcde"[TRUTH[i]] for i in range(60)}
    opened = ReviewedRun.open(run.path)
    x = np.array(run.embeddings())
    export_run(opened, "csv", out)
    public = shoal.load(run.path)
    return {
        "report": render_report(Run(run.path)),
        "export": [(out / name).read_bytes() for name in ("assignments.csv", "categories.csv")],
        "pandas": public.to_pandas().to_csv(),
        "assigned": Assigner(opened, device="cpu").assign_embeddings(["new"] * 60, x[::-1]),
        "facts": {k: v for k, v in collect_facts(Run(run.path)).items() if k != "files"},
        "score": score_run(opened, truth),
        "review": Review(Run(run.path)).state.checksum,
    }


def test_all_that_reads_a_run_reads_parts(
    run: Run, parts: None, tmp_path: Path, monkeypatch
) -> None:
    assert pq.read_table(run.path / "assignments.parquet").num_rows == 60
    with monkeypatch.context() as small:
        small.setattr("shoal.runs.file_parts.PART_ROWS", 60)
        expected = outputs(run, tmp_path / "one")
    run.drop("accuracy.json")
    run.write_assignments(run.assignments)
    found = outputs(run, tmp_path / "parts")
    for what, value in expected.items():
        assert found[what] == value, what
    assert [file.name for file in sorted((tmp_path / "parts").glob("*.parquet"))] == NAMES
    assert set(NAMES) <= set(collect_facts(Run(run.path))["files"])


def test_a_review_of_parts_is_written_and_read(run: Run, parts: None) -> None:
    run.write_assignments(run.assignments)
    opened = shoal.load(run.path)
    opened.move([opened.assignments[3].path], "new name")
    again = shoal.load(run.path)
    assert (again.assignments[3].category, again.assignments[3].status) == ("new name", "moved")


def test_a_lost_or_damaged_part_is_named_with_the_remedy(run: Run, parts: None) -> None:
    run.write_assignments(run.assignments)
    second = run.path / NAMES[1]
    whole = second.read_bytes()
    second.write_bytes(whole[:-20])
    with pytest.raises(
        DataError,
        match=rf"{NAMES[1]}: damaged or edited, .*; restore a copy, or run again",
    ):
        Run.open(run.path)
    second.unlink()
    with pytest.raises(DataError, match=rf"{NAMES[1]}: .*part 2 of 3 is missing; restore"):
        Run.open(run.path)
    table = pq.read_table(run.path / NAMES[0])
    pq.write_table(table.drop_columns(["confidence"]), second)
    with pytest.raises(DataError, match=rf"{NAMES[1]}: .*confidence"):
        Run.open(run.path)
    pq.write_table(table, second)
    with pytest.raises(DataError, match="two rows have the path"):
        Run.open(run.path)


def test_a_run_made_again_leaves_no_part_of_the_other_kind(
    run: Run, parts: None, monkeypatch
) -> None:
    listed = run.assignments
    run.write_assignments(listed)
    with monkeypatch.context() as small:
        small.setattr("shoal.runs.file_parts.PART_ROWS", 60)
        run.write_assignments(listed)
    assert sorted(file.name for file in run.path.glob("assignments*")) == [
        "assignments.csv",
        "assignments.parquet",
    ]
    run.write_assignments(listed)
    run.abandon()
    assert not run.path.exists()


def test_without_pyarrow_a_large_table_is_one_csv_and_parts_say_what_to_install(
    run: Run, parts: None, monkeypatch
):
    listed = run.assignments
    expected = (run.path / "assignments.csv").read_bytes()
    run.write_assignments(listed)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingError):
        Run.open(run.path)
    run.write_assignments(iter(listed), 60)
    assert [file.name for file in run.path.glob("assignments*")] == ["assignments.csv"]
    assert (run.path / "assignments.csv").read_bytes() == expected
