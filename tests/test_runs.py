import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from held_runs import hold_lock
from shoal.errors import DataError, UsageError
from shoal.runs import Assignment, Category, Run
from small_runs import write_small


@dataclass(frozen=True)
class Settings:
    epochs: int = 3


def finished_run(path: Path) -> Run:
    run = Run.create(path)
    run.start(Settings(), seed=7, device="cpu", command="shoal test", fingerprint="abc")
    run.write_assignments(ROWS)
    run.write_categories(CATEGORIES)
    run.write_array("embeddings", np.eye(2, 3, dtype=np.float32))
    run.write_json("estimate", ESTIMATE)
    run.note(seconds=1.5)
    run.finish()
    return run


ESTIMATE = {"n_clusters": 2, "curve": {"n_clusters": [2, 3], "accuracy": [0.5, 1 / 3]}}

ROWS = [
    Assignment(
        path='a/"quoted", and, commas.jpg',
        label_given="Ærfugl / hunn",
        category_id=0,
        category="Ærfugl / hunn",
        is_novel=False,
        confidence=0.25,
        outlier_score=0.5,
        nearest_known="Ærfugl / hunn",
        nearest_known_similarity=0.75,
        second_category="novel-001",
    ),
    Assignment(
        path="line\nbreak.jpg",
        category_id=1,
        category="novel-001",
        is_novel=True,
        confidence=1.0,
        outlier_score=0.0,
    ),
]
ALIKE = {"size": 1, "n_labeled": 0, "confidence": 0.5, "exemplars": ("a;b.jpg", "ü,.png")}
CATEGORIES = [
    Category(category_id=number, category=name, is_novel=number > 0, **ALIKE)
    for number, name in enumerate(("Ærfugl / hunn", "novel-001", "=1+1"))
]

HEADER = ",".join(field.name for field in dataclasses.fields(Category))


def test_what_was_written_is_read_back_equal(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert str(run.assignments) == str(ROWS)  # as text, because nan != nan
    assert str(run.categories) == str(CATEGORIES)
    assert run.n_clusters == 3
    assert run.config == {"epochs": 3}
    assert run.provenance["seed"] == 7
    assert run.provenance["packages"]["torch"]
    assert run.json("estimate") == ESTIMATE
    assert run.has("tree.npy") is False
    assert run.array("embeddings").tolist() == np.eye(2, 3).tolist()


def test_a_finished_run_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="give force=True"):
        Run.create(run.path)
    assert Run.open(run.path).n_clusters == 3
    Run.create(run.path, force=True)
    assert [file.name for file in run.path.iterdir()] == [
        "notes.txt"
    ]  # only files of the run are removed


def test_an_unfinished_run_can_be_taken_up_again_but_not_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.start(Settings(), seed=0, device="cpu", command="", fingerprint="of its images")
    with pytest.raises(DataError, match="was not finished; run the same command with resume=True"):
        Run.open(run.path)
    with hold_lock(run.path) as holder:
        with pytest.raises(UsageError, match=f"is being written by process {holder.pid} on "):
            Run.open(run.path)
        holder.kill()
    assert Run.create(run.path).config == {"epochs": 3}


def test_a_folder_that_is_no_run_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    for force in (False, True):
        with pytest.raises(UsageError, match="no run"):
            Run.create(tmp_path, force=force)
    with pytest.raises(DataError, match="not a run folder"):
        Run.open(tmp_path)


def test_a_run_whose_files_were_edited_says_what_is_missing(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    (run.path / "assignments.csv").write_text("path,category\na,b\n")
    with pytest.raises(DataError, match="no column category_id"):
        _ = run.assignments
    (run.path / "categories.csv").unlink()
    with pytest.raises(DataError, match="missing"):
        _ = run.categories
    with pytest.raises(DataError, match="missing"):
        run.array("tree")


@pytest.mark.parametrize(
    ("part", "text", "place"),
    [
        ("estimate.json", '{\n"n_clusters": 2,\n}', "line 3"),
        ("provenance.json", "[1]", "provenance.json"),
        ("metrics.jsonl", '{"epoch": 1}\n{"epoch"', "line 2"),
        ("config.yaml", "epochs: 3\nx: !!python/object:os.system {}\n", "line 2"),
        ("config.yaml", "- 3\n", "config.yaml"),
        ("categories.csv", f'{HEADER}\n0,"gull\n1,x\n', "line 2"),
        ("categories.csv", f"{HEADER}\n\n0,gull\n", "line 3"),
    ],
)
def test_an_edited_part_is_named_with_its_place(
    tmp_path: Path, part: str, text: str, place: str
) -> None:
    run = finished_run(tmp_path / "run")
    (run.path / part).write_text(text)
    name, kind = part.split(".")
    reads = {"json": lambda: run.json(name), "yaml": lambda: run.config}
    reads |= {"jsonl": lambda: run.metrics, "csv": lambda: run.categories}
    with pytest.raises(DataError) as refused:
        reads[kind]()
    assert part in str(refused.value)
    assert place in str(refused.value)


def test_an_edited_table_says_which_cell_of_which_line_is_wrong(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    file = run.path / "assignments.csv"
    text = file.read_text()
    for old, new, problem in (
        ("0.250000", "a lot", "line 2: .*confidence: found 'a lot'"),
        ("false", "maybe", "line 2: .*is_novel: found 'maybe'"),
        (",1,novel-001", ",one,novel-001", "line 3: .*category_id: found 'one'"),
        ("1.000000,", "", "line 3: damaged or edited, found 13 cells where the header has 14"),
    ):
        assert text.count(old) >= 1
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=problem):
            _ = run.assignments
    file.write_text(
        "\ufeff" + text.replace("false", "FALSE").replace("true", "TRUE")
    )  # as saved by a spreadsheet
    assert str(run.assignments) == str(ROWS)


@pytest.mark.parametrize(
    ("part", "old", "new", "problem"),
    [
        (
            "assignments",
            ",2,novel-001,",
            ",99,novel-001,",
            "assignments.csv: .*category 99 ",
        ),
        (
            "assignments",
            "04.png,",
            "03.png,",
            "assignments.csv: .*two rows have the path '03.png'",
        ),
        (
            "assignments",
            "\n11.png.*\n",
            "\n",
            "assignments.csv: .*found 11 rows, but embeddings.npy has .12, 8",
        ),
        (
            "categories",
            "novel-002",
            "owl",
            "assignments.csv: .* 3 is 'novel-002', .*categories.csv 'owl'",
        ),
        ("categories", "\n1,", "\n0,", "categories.csv, line 3: .*found id 0"),
    ],
)
def test_tables_that_were_edited_apart_are_refused_when_the_run_is_opened(
    tmp_path: Path, part: str, old: str, new: str, problem: str
) -> None:
    run = write_small(tmp_path / "run")
    assert Run.open(run.path).n_clusters == 4
    file = run.path / f"{part}.csv"
    file.write_text(re.sub(old, new, file.read_text(), count=1))
    with pytest.raises(
        DataError, match=f"{problem}.*; restore a copy, or run again with force=True"
    ):
        Run.open(run.path)
    run.drop("embeddings.npy", "categories.csv" if part == "assignments" else "assignments.csv")
    if "03.png" not in problem:
        Run.open(run.path)  # the remaining table alone is consistent


def test_a_damaged_run_is_cleared_by_force_and_by_nothing_else(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    (run.path / "provenance.json").write_text("{")
    with pytest.raises(
        DataError, match=r"provenance\.json: damaged .* line 1 .* run again with force=True"
    ):
        Run.create(run.path)
    assert Run.create(run.path, force=True).path.is_dir()
    assert not run.has("assignments.csv")


def test_a_run_killed_while_it_is_cleared_is_unfinished_and_cleared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink
    n_files = len(list(finished_run(tmp_path / "whole").path.iterdir()))
    for n_removed in range(n_files):
        run = finished_run(tmp_path / f"run-{n_removed}")
        left = iter(range(n_removed))

        def stopping(file: Path, missing_ok: bool = False, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            unlink(file, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", stopping)
            with pytest.raises(KeyboardInterrupt):
                Run.create(run.path, force=True)
        assert not run.is_finished
        assert not list(Run.create(run.path, force=True).path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="needs links")
@pytest.mark.parametrize("place", ["frozen", "trained", "trial-1", "methods"])
@pytest.mark.parametrize("force", [True, False])
def test_a_run_that_a_link_leads_to_is_kept(tmp_path: Path, place: str, force: bool) -> None:
    other = finished_run(tmp_path / "methods" / "cms" if place == "methods" else tmp_path / "other")
    before = {file.name: file.read_bytes() for file in other.path.iterdir()}
    run = Run.create(tmp_path / "run")
    run.start(Settings(), seed=7, device="cpu", command="shoal test")
    (run.path / place).symlink_to(other.path.parent if place == "methods" else other.path)
    Run.create(run.path, force=force)
    run.abandon()
    assert {file.name: file.read_bytes() for file in other.path.iterdir()} == before
    assert not (run.path / place).exists()


@pytest.mark.parametrize("name", ["embeddings", "tree"])
def test_an_array_that_is_none_is_never_advised_to_be_unpickled(tmp_path: Path, name: str) -> None:
    run = finished_run(tmp_path / "run")
    file = run.path / f"{name}.npy"
    for damage in (
        lambda: file.write_bytes(b"junk"),
        lambda: np.save(file, np.array([{}, []], dtype=object)),
    ):
        damage()
        with pytest.raises(DataError, match=rf"{name}\.npy: damaged or edited, ") as refused:
            run.array(name)
        assert "pickle" not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="needs RLIMIT_FSIZE")
def test_an_array_that_does_not_fit_on_the_disk_says_so(tmp_path: Path) -> None:
    code = (
        "import resource, signal, numpy as np; from shoal.runs import Run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"Run.create({str(tmp_path / 'run')!r}).write_array('embeddings', np.ones((1000, 100)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "embeddings.npy: no space left on the disk" in run.stderr


def test_a_known_category_that_no_cluster_is_matched_to_is_not_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_categories(
        [
            Category(
                category_id=0, category="crab", is_novel=False, size=3, n_labeled=2, confidence=1.0
            ),
            Category(
                category_id=1,
                category="shrimp",
                is_novel=False,
                size=0,
                n_labeled=2,
                confidence=1.0,
            ),
        ]
    )
    assert (len(run.categories), run.n_clusters) == (2, 1)


def test_a_line_of_the_log_holds_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    Run(tmp_path).log("heron\x1b]0;owned\x07\nerror: forged")
    (line,) = (tmp_path / "train.log").read_text("utf-8").splitlines()
    assert line.endswith("  heron␛]0;owned␇␊error: forged")


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_in_the_place_of_the_log_is_not_written_through(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    (tmp_path / "train.log").symlink_to(mine)
    with pytest.raises(UsageError, match=r"train.log: .*link"):
        Run(tmp_path).log("trained")
    assert mine.read_text() == "precious"
