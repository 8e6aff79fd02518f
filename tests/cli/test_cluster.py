"""`shoal cluster`: embeddings in, a run out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.clustering.estimators import MeanShiftClustering
from shoal.report.certainty import how_sure
from shoal.report.snapshot import Snapshot
from shoal.runs import Run, RunView


def cluster(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["cluster", *map(str, arguments), "--device", "cpu"])


@pytest.fixture
def points() -> tuple[np.ndarray, np.ndarray]:
    """Five bundles of directions, twelve rows each."""
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


def test_five_bundles_are_found_when_three_are_known(file: Path, points, tmp_path: Path) -> None:
    run = cluster(file, "--out", tmp_path / "run")
    assert run.exit_code == 0, run.stderr
    assert (
        run.stderr.splitlines()[0]
        == "60 embeddings of 5 numbers, 18 labeled in 3 categories, 42 unlabeled"
    )
    assert (
        "note: the number of categories rests on 3 known categories; give --n-clusters or label"
        in run.stderr
    )
    answer, path = run.stdout.splitlines()
    assert answer == (
        "3 known categories found, 2 likely new, 0 images unsure; about 5 categories, 5 to 6 likely; "
        "too few labels to check confidence, so none is above 0.95"
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


def test_average_linkage_is_said(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        json.loads(cluster(file, "--out", tmp_path / "ward", "--json").stdout)["linkage"] == "ward"
    )
    monkeypatch.setattr("shoal.clustering.inference.choose_linkage", lambda *_: "average")
    run = cluster(file, "--out", tmp_path / "average", "--json")
    assert json.loads(run.stdout)["linkage"] == "average"
    assert (
        "clusters are joined by average linkage: it puts more of the labeled images" in run.stderr
    )


def test_the_papers_protocol_is_one_flag_and_a_rule_given_beside_it_wins(
    file: Path, tmp_path: Path
) -> None:
    for flags, expected in ([], ("paper", 0)), (["--rule", "pairs"], ("pairs", 0)):
        run = cluster(file, "--out", tmp_path / "run", "--protocol", "paper", "--force", *flags)
        assert run.exit_code == 0, run.stderr
        inference = Run.open(tmp_path / "run").config["inference"]
        assert (inference["rule"], inference["estimate_shifts"]) == expected


def test_columns_of_other_names_are_named_by_flags(file: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        "photo,species\n" + "".join(f"img-{i:02d},{'ab'[i % 5]}\n" for i in (0, 1, 5, 6))
    )
    assert "--label-column" in cluster(file, "--labels", table, "--dry-run").stderr
    found = cluster(
        file, "--labels", table, "--path-column", "photo", "--label-column", "species", "--dry-run"
    )
    assert found.exit_code == 0, found.stderr
    assert "4 labeled in 2 categories" in found.stdout


def test_labels_may_come_from_a_table_and_json_is_one_object(points, tmp_path: Path) -> None:
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


def test_a_table_of_names_without_labels_is_one_of_unlabeled_rows(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "blank.csv").write_text(
        "path,label\n" + "".join(f"img-{i:02d},\n" for i in range(60))
    )
    run = cluster(
        file, "--labels", tmp_path / "blank.csv", "--n-clusters", 3, "--out", tmp_path / "run"
    )
    assert run.exit_code == 0, run.stderr
    assert "none labeled, 60 unlabeled" in run.stderr


def evaluate(run: Path, truth: Path) -> Result:
    return CliRunner().invoke(app, ["evaluate", str(run), "--truth", str(truth), "--json"])


def test_labels_and_truth_may_be_arrays_where_rows_have_no_names(points, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", points[0])
    np.save(tmp_path / "y.npy", np.where((points[1] < 3) & (np.arange(60) < 30), points[1], -1))
    np.save(tmp_path / "truth.npy", points[1])
    run = cluster(tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--out", tmp_path / "run")
    assert run.exit_code == 0, run.stderr
    assert "18 labeled in 3 categories" in run.stderr
    score = evaluate(tmp_path / "run", tmp_path / "truth.npy")
    assert score.exit_code == 0, score.stderr
    assert (json.loads(score.stdout)["all"], json.loads(score.stdout)["n_images"]) == (1.0, 42)


def test_labels_and_truth_that_pandas_wrote_as_floats_are_the_classes_that_an_array_has(
    points, tmp_path: Path
) -> None:
    """Class c is 5·c here, so that 10 comes after 5 by number alone; category ids are the classes' places."""
    x, truth = points
    given = np.where((truth < 3) & (np.arange(60) < 30), 5.0 * truth, np.nan)
    np.savez(tmp_path / "npz.npz", X=x, y=np.where(np.isnan(given), -1, given).astype(int))
    np.save(tmp_path / "csv.npy", x)
    pd.DataFrame({"label": given}).to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"label": [None, *(5.0 * truth[1:])]}).to_csv(tmp_path / "truth.csv", index=False)
    found = []
    for source, flags in ("npz.npz", []), ("csv.npy", ["--labels", tmp_path / "labels.csv"]):
        run = cluster(tmp_path / source, *flags, "--out", tmp_path / "run", "--force")
        assert run.exit_code == 0, run.stderr
        found.append((tmp_path / "run/categories.csv").read_text())
        score = json.loads(evaluate(tmp_path / "run", tmp_path / "truth.csv").stdout)
        assert (score["all"], score["known"]) == (1.0, 1.0)
    assert found[0] == found[1]
    assert [row.category for row in Run.open(tmp_path / "run").categories[:3]] == ["0", "5", "10"]
    assert MeanShiftClustering(device="cpu").fit(x, given).classes_[:3].tolist() == [0, 5, 10]


def test_a_truth_without_paths_is_refused_where_rows_have_names(
    file: Path, points, tmp_path: Path
) -> None:
    np.save(tmp_path / "truth.npy", points[1])
    assert cluster(file, "--out", tmp_path / "run").exit_code == 0
    score = evaluate(tmp_path / "run", tmp_path / "truth.npy")
    assert (score.exit_code, score.stdout) == (3, "")
    assert "names such as 'img-00' were sorted" in score.stderr


def test_scrambled_hidden_labels_change_nothing_but_the_score(points, tmp_path: Path) -> None:
    """The file's own y is the whole truth, of which --labels gives the part that a user has.

    Twice the same, once with the hidden part shuffled, and again after each was evaluated: every file of the run is
    the same to the last byte. Only the score tells the two apart, so the shuffle was one.
    """
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
    """What a run holds, without the score and the times."""
    return {
        file.name: file.read_bytes()
        for file in run.iterdir()
        if file.stem not in ("accuracy", "provenance")
    }


@pytest.mark.parametrize(
    "flags", [["--n-clusters", "61"], ["--alpha", "2"], ["--rule", "papr"], ["--n-neighbors", "60"]]
)
@pytest.mark.parametrize("is_dry", [True, False])
def test_what_cannot_end_is_refused_before_anything_is_written(
    file: Path, tmp_path: Path, flags: list[str], is_dry: bool
) -> None:
    run = cluster(file, "--out", tmp_path / "run", *flags, *(["--dry-run"] if is_dry else []))
    assert (run.exit_code, run.stderr.count("error:")) == (2, 1)
    assert not (tmp_path / "run").exists()


def test_neither_labels_nor_a_number_is_refused_before_anything_is_written(
    points, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", points[0])
    run = cluster(tmp_path / "x.npy", "--out", tmp_path / "run")
    assert (run.exit_code, "found none and no labels" in run.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_stops_after_the_counts(file: Path, tmp_path: Path) -> None:
    run = cluster(file, "--dry-run", "--out", tmp_path / "run")
    assert run.exit_code == 0
    assert run.stdout.startswith("60 embeddings of ")
    found = json.loads(
        cluster(file, "--dry-run", "--out", tmp_path / "run", "--n-clusters", "7", "--json").stdout
    )
    assert found["counted"] == run.stdout.strip()
    assert (found["n_embeddings"], found["n_clusters"], found["out"]) == (
        60,
        7,
        str(tmp_path / "run"),
    )
    assert found["n_labeled"] == sum(found["class_sizes"]) == 60 - found["n_unlabeled"]
    assert not (tmp_path / "run").exists()


def test_the_order_of_the_rows_changes_nothing(file: Path, points, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(60)
    with np.load(file) as found:
        np.savez(tmp_path / "other.npz", **{name: found[name][order] for name in found.files})
    for name, source in (("a", file), ("b", tmp_path / "other.npz")):
        assert cluster(source, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a/assignments.csv").read_bytes() == (
        tmp_path / "b/assignments.csv"
    ).read_bytes()


@pytest.mark.parametrize(
    ("flags", "code", "word"),
    [
        (["--n-clusters", 2], 2, "found 2 with 3 known classes"),
        (["--n-clusters", 61], 2, "expected 3 to 60"),
        (["--n-neighbors", 60], 2, "60"),
        (["--n-neighbors", 0], 2, "n_neighbors"),
        (["--alpha", 1.5], 2, "alpha"),
        (["--protocol", "papr"], 2, "no protocol 'papr'; did you mean 'paper'"),
        (["--rule", "papr"], 2, "did you mean 'paper'"),
        (["--rule", "papr", "--n-clusters", 5], 2, "did you mean 'paper'"),
        (["--labels", "nowhere.csv"], 3, "nowhere.csv"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_with_its_exit_code(
    file: Path, tmp_path: Path, flags, code: int, word: str
) -> None:
    run = cluster(file, "--out", tmp_path / "run", *flags)
    assert (run.exit_code, run.stdout) == (code, ""), run.stderr
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert word in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def bad(x: np.ndarray, row: int, value: float) -> np.ndarray:
    changed = x.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        (lambda x: bad(x, 7, np.nan), 3, "row 7 (1 of 60)"),
        (lambda x: bad(x, 3, 0), 3, "only zeros in row 3"),
        (lambda x: x[0], 3, "expected (N, D)"),
        (lambda x: x.astype(str), 3, "expected numbers"),
    ],
    ids=["nan", "zeros", "one dimension", "text"],
)
def test_bad_embeddings_are_refused_with_the_rows(
    points, tmp_path: Path, change, code: int, word: str
) -> None:
    np.save(tmp_path / "x.npy", change(points[0]))
    run = cluster(tmp_path / "x.npy", "--n-clusters", 5, "--out", tmp_path / "run")
    assert (run.exit_code, run.stdout) == (code, ""), run.stderr
    assert word in run.stderr.splitlines()[-1]


def test_no_labels_and_no_number_say_what_is_missing(points, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", points[0])
    run = cluster(tmp_path / "x.npy", "--out", tmp_path / "run")
    assert run.exit_code == 2
    assert "give the number of clusters, or labels" in run.stderr
    assert cluster(tmp_path / "x.npy", "--out", tmp_path / "run", "--n-clusters", 5).exit_code == 0


def test_a_finished_run_is_kept_unless_forced(file: Path, tmp_path: Path) -> None:
    assert cluster(file, "--out", tmp_path / "run").exit_code == 0
    again = cluster(file, "--out", tmp_path / "run")
    assert again.exit_code == 2
    assert "give --force" in again.stderr
    assert cluster(file, "--out", tmp_path / "run", "--force").exit_code == 0


def test_an_unfinished_run_is_to_be_made_again_by_the_same_command(
    file: Path, tmp_path: Path, monkeypatch
) -> None:
    """`shoal cluster` has no --resume, so nobody is told to give it."""
    with monkeypatch.context() as patch:
        patch.setattr("shoal.discovery.cluster_embeddings.write_categories", stop)
        assert cluster(file, "--out", tmp_path / "run").exit_code == 130
    refused = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--truth", "truth.csv"])
    assert refused.exit_code == 3
    assert refused.stderr.endswith("the run was not finished; run the same command again\n")
    assert cluster(file, "--out", tmp_path / "run").exit_code == 0


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_duplicates_are_fine(points, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.repeat(points[0][:6], 10, axis=0))
    assert cluster(tmp_path / "x.npz", "--n-clusters", 5, "--out", tmp_path / "run").exit_code == 0


def test_a_range_is_kept_to_and_said(file: Path, tmp_path: Path) -> None:
    run = cluster(file, "--out", tmp_path / "run", "--n-clusters", "7-9", "--json")
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    estimate = Run.open(tmp_path / "run").json("estimate")
    assert 7 <= found["interval"][0] <= found["n_clusters"] <= found["interval"][1] <= 9
    assert found["range"] == estimate["range"] == [7, 9]
    assert found["by_labels"] == [5, 6]
    assert found["doubt"].startswith("the number of categories rests on 3 known categories")
    against = "by the labels 5 to 6 are likely, outside of the given range"
    assert f"likely within the 7 to 9 that were given ({against})" in found["answer"]
    assert found["doubt"].endswith(against)
    assert (estimate["is_given"], estimate["by_labels"]) == (False, [5, 6])
    assert f"But {against}." in how_sure(Snapshot(RunView.open(tmp_path / "run")))
    inference = Run.open(tmp_path / "run").config["inference"]
    assert (inference["min_clusters"], inference["max_clusters"]) == (7, 9)


def test_a_range_that_labels_agree_with_is_not_spoken_against(file: Path, tmp_path: Path) -> None:
    found = json.loads(
        cluster(file, "--out", tmp_path / "run", "--n-clusters", "6-9", "--json").stdout
    )
    assert "by the labels" not in found["answer"] + found["doubt"]
    assert Run.open(tmp_path / "run").json("estimate")["by_labels"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("9-7", "found 9-7, expected the smaller number first, 7-9"),
        ("1-2", "found a range that ends at 2, below the 3 known categories"),
        ("61-99", "found a range that begins at 61, above the 60 images"),
        ("many", "found 'many', expected a whole number, or a range such as 30-50"),
    ],
)
def test_a_range_that_cannot_be_is_refused(
    file: Path, tmp_path: Path, given: str, said: str
) -> None:
    run = cluster(file, "--out", tmp_path / "run", "--n-clusters", given)
    assert (run.exit_code, said in run.stderr) == (2, True), run.stderr
    assert not (tmp_path / "run").exists()
