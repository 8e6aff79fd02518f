"""`shoal cluster`: embeddings in, a run out."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from commands import shoal
from shoal.runs import Run


def cluster(*arguments: object) -> Result:
    return shoal("cluster", *arguments, "--device", "cpu")


@pytest.fixture
def points() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around five directions, twelve rows each."""
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 5
    return (np.eye(5)[truth] + 0.1 * rng.normal(size=(60, 5))).astype(np.float32), truth


@pytest.fixture
def file(points, tmp_path: Path) -> Path:
    """Classes 0, 1 and 2 are known: half of their rows are labeled."""
    x, truth = points
    names = [f"img-{i:02d}" for i in range(60)]
    y = np.where((truth < 3) & (np.arange(60) < 30), truth.astype(str), "")
    np.savez(tmp_path / "features.npz", X=x, y=y, paths=names)
    return tmp_path / "features.npz"


def test_five_bundles_are_found_with_three_known(file: Path, points, tmp_path: Path) -> None:
    run = cluster(file, "--out", tmp_path / "run")
    assert run.exit_code == 0, run.stderr
    assert (
        run.stderr.splitlines()[0]
        == "60 embeddings of 5 numbers, 18 labeled in 3 categories, 42 unlabeled"
    )
    assert "is estimated from 18 labeled images of 3 known categories" in run.stderr
    summary, path = run.stdout.splitlines()
    assert summary == (
        "Found 5 categories (80 % interval 5–6): 3 known, 2 novel. 0 images are uncertain. "
        "Confidence could not be calibrated from the labels, so for unlabeled images it is at "
        "most 0.95."
    )
    found = Run.open(path)
    assert found.n_clusters == 5
    assert [found.json("estimate")[part] for part in ("rule", "interval")] == ["pairs", [5, 6]]
    ids = np.array([row.category_id for row in found.assignments])
    for label in range(3):
        assert set(ids[points[1] == label]) == {label}
    assert {"embeddings.npy", "tree.npy", "shifts.json"} <= {
        part.name for part in found.path.iterdir()
    }


def test_the_protocol_is_a_flag_and_rule_overrides_it(file: Path, tmp_path: Path) -> None:
    for flags, expected in ([], ("paper", 0)), (["--rule", "pairs"], ("pairs", 0)):
        run = cluster(file, "--out", tmp_path / "run", "--protocol", "paper", "--force", *flags)
        assert run.exit_code == 0, run.stderr
        inference = Run.open(tmp_path / "run").config["inference"]
        assert (inference["rule"], inference["estimate_shifts"]) == expected


def test_labels_from_a_table_and_json_output(points, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", points[0])
    cells = [str(label) if label < 3 and i < 30 else "-1" for i, label in enumerate(points[1])]
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(cells) + "\n")
    run = cluster(
        tmp_path / "x.npy",
        "--labels",
        tmp_path / "labels.csv",
        "--json",
        "--out",
        tmp_path / "run",
        "--n-clusters",
        5,
    )
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["n_clusters"], found["run"]) == (5, str(tmp_path / "run"))


def evaluate(run: Path, truth: Path) -> Result:
    return shoal("evaluate", run, "--truth", truth, "--json")


def test_scrambled_hidden_labels_change_only_the_score(points, tmp_path: Path) -> None:
    """`y` in the file has all labels, --labels those that a user has. Two runs, one with shuffled
    hidden labels, have the same bytes, also after each was evaluated. Only their scores differ."""
    x, truth = points
    names = [f"img-{i:02d}" for i in range(60)]
    is_labeled = (truth < 3) & (np.arange(60) < 30)
    table = tmp_path / "labels.csv"
    table.write_text(
        "path,label\n" + "".join(f"{names[i]},{truth[i]}\n" for i in np.flatnonzero(is_labeled))
    )
    scrambled = truth.copy()
    scrambled[~is_labeled] = np.random.default_rng(1).permutation(truth[~is_labeled])
    found = []
    scores = []
    for name, y in ("plain", truth), ("scrambled", scrambled):
        np.savez(tmp_path / f"{name}.npz", X=x, y=y.astype(str), paths=names)
        hidden = tmp_path / f"{name}.csv"
        hidden.write_text(
            "path,label\n"
            + "".join(f"{path},{label}\n" for path, label in zip(names, y, strict=True))
        )
        for _ in range(2):
            run = cluster(
                tmp_path / f"{name}.npz", "--labels", table, "--out", tmp_path / name, "--force"
            )
            assert run.exit_code == 0, run.stderr
            scores.append(json.loads(evaluate(tmp_path / name, hidden).stdout)["all"])
            found.append(parts(tmp_path / name))
    assert found[0] == found[1] == found[2] == found[3]
    assert {
        "assignments.csv",
        "categories.csv",
        "estimate.json",
        "shifts.json",
        "tree.npy",
    } <= found[0].keys()
    assert scores[0] == scores[1] == 1.0
    assert scores[2] == scores[3] < 0.5


def parts(run: Path) -> dict[str, bytes]:
    """Return the files of a run without scores and times."""
    return {
        file.name: file.read_bytes()
        for file in run.iterdir()
        if file.stem not in ("accuracy", "provenance")
    }


def test_row_order_does_not_change_the_result(file: Path, points, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(60)
    with np.load(file) as found:
        np.savez(tmp_path / "other.npz", **{name: found[name][order] for name in found.files})
    for name, source in (("a", file), ("b", tmp_path / "other.npz")):
        assert cluster(source, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a/assignments.csv").read_bytes() == (
        tmp_path / "b/assignments.csv"
    ).read_bytes()


def test_a_finished_run_is_not_overwritten_unless_forced(file: Path, tmp_path: Path) -> None:
    assert cluster(file, "--out", tmp_path / "run").exit_code == 0
    again = cluster(file, "--out", tmp_path / "run")
    assert again.exit_code == 2
    assert "give --force" in again.stderr
    assert cluster(file, "--out", tmp_path / "run", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--n-clusters 2", 2),
        ("--n-clusters 61", 2),
        ("--n-clusters 9-7", 2),
        ("--n-clusters 1-2", 2),
        ("--n-clusters 61-99", 2),
        ("--n-clusters many", 2),
        ("--n-neighbors 60", 2),
        ("--n-neighbors 0", 2),
        ("--alpha 1.5", 2),
        ("--protocol papr", 2),
        ("--rule papr --n-clusters 5", 2),
        ("--labels nowhere.csv", 3),
    ],
)
def test_user_errors_are_refused_before_anything_is_written(
    file: Path, tmp_path: Path, flags: str, code: int
) -> None:
    run = cluster(file, "--out", tmp_path / "run", *flags.split())
    assert (run.exit_code, run.stdout, run.stderr.count("error:")) == (code, "", 1)
    assert not (tmp_path / "run").exists()


def test_the_estimate_stays_in_a_given_range(file: Path, tmp_path: Path) -> None:
    run = cluster(file, "--out", tmp_path / "run", "--n-clusters", "7-9", "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    assert 7 <= found["interval"][0] <= found["n_clusters"] <= found["interval"][1] <= 9
    assert found["range"] == [7, 9]
