"""Precomputed embeddings in, a finished run folder out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import files
from shoal.clustering import sums
from shoal.clustering.categories import other_neighbors
from shoal.clustering.estimators import MeanShiftClustering
from shoal.clustering.inference import infer
from shoal.clustering.sums import unit_points
from shoal.data.readers import read_embeddings
from shoal.data.readers.embeddings import Embeddings
from shoal.discovery.reporter import Reporter
from shoal.discovery.results import ClusterSettings, cluster_embeddings
from shoal.methods import method
from shoal.methods.method import as_discovery, to_numpy
from shoal.runs import Run
from small_runs import embedded, embedded_five


@pytest.fixture
def given() -> Embeddings:
    return embedded_five()


def test_the_run_equals_the_result_of_the_estimator(given: Embeddings, tmp_path: Path) -> None:
    run = cluster_embeddings(given, tmp_path / "run", device="cpu")
    model = MeanShiftClustering(device="cpu").fit(np.asarray(given.x), given.labels)
    assert [row.category_id for row in run.assignments] == model.labels_.tolist()
    assert [row.category for row in run.categories[3:]] == model.classes_[3:].tolist()
    assert run.json("estimate")["n_clusters"] == model.n_clusters_ == run.n_clusters
    assert [row.outlier_score for row in run.assignments] == pytest.approx(
        model.outlier_score_, abs=1e-6
    )
    assert run.json("shifts")["chosen"] == model.n_shifts_
    np.testing.assert_array_equal(run.array("tree"), model.tree_.linkage)


def test_a_float16_file_gives_the_same_result_as_its_values_in_memory(
    given: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = np.asarray(given.x).astype(np.float16)
    np.save(tmp_path / "x.npy", half)
    monkeypatch.setattr(sums, "BLOCK_ROWS", 7)
    mapped = read_embeddings(tmp_path / "x.npy").x
    assert (mapped.dtype, isinstance(mapped.base, np.memmap)) == (np.float16, True)
    runs = {}
    for name, x in (("mapped", mapped), ("float16", half), ("float32", half.astype(np.float32))):
        runs[name] = cluster_embeddings(replace(given, x=x), tmp_path / name, device="cpu")
    tables = ("assignments.csv", "categories.csv", "estimate.json")
    for part in (*tables, "embeddings.npy", "shifted.npy", "tree.npy"):
        assert len({(run.path / part).read_bytes() for run in runs.values()}) == 1


def test_copies_of_large_tensors_are_in_a_mapped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3)))
    plain = to_numpy(rows)
    monkeypatch.setattr(files, "MAX_SCRATCH_BYTES", 0)
    monkeypatch.setattr(method, "BLOCK_ROWS", 7)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    mapped = to_numpy(rows)
    assert (plain.base is None, isinstance(mapped.base, np.memmap)) == (True, True)
    np.testing.assert_array_equal(mapped, plain)
    own = rows.float()
    assert np.shares_memory(to_numpy(own), own.numpy())  # already float32 on the CPU


def test_neighbors_of_the_clustering_are_those_of_the_written_rows(
    given: Embeddings,
) -> None:
    # float64 rows are rounded when written, after which they may have other neighbors.
    for dtype in (torch.float32, torch.float64):
        points = unit_points(torch.tensor(given.x, dtype=dtype))
        found = as_discovery(infer(points, given.labels, 5, is_unit=True), points)
        assert (found.neighbors is None) == (dtype == torch.float64)
        if found.neighbors is not None:
            lists = other_neighbors(torch.from_numpy(found.embeddings), 8)
            assert torch.equal(found.neighbors.indices, lists.indices)
            assert torch.equal(found.neighbors.similarities, lists.similarities)


def test_names_of_equally_large_novel_categories_do_not_depend_on_row_order(
    tmp_path: Path,
) -> None:
    """Three bundles of ten rows along columns 20, 21 and 22; the first twenty columns are equal."""
    bundle = np.repeat([20, 21, 22], 10)
    x = np.eye(24)[bundle]
    x[:, 23] = np.random.default_rng(0).normal(scale=0.01, size=30)
    found = []
    for name, order in ("plain", np.arange(30)), ("reversed", np.arange(30)[::-1]):
        labels = np.full(30, -1)
        names = [f"{bundle[i]}-{i:02d}" for i in order]
        given = embedded(x[order], labels, (), names)
        run = cluster_embeddings(
            given, tmp_path / name, ClusterSettings(n_clusters=3), device="cpu"
        )
        found.append({row.path: row.category for row in run.assignments})
        model = MeanShiftClustering(n_clusters=3, device="cpu").fit(x[order])
        assert [row.category_id for row in run.assignments] == model.labels_.tolist()
    assert found[0] == found[1]


@pytest.mark.slow
def test_row_order_does_not_change_the_written_bits(tmp_path: Path) -> None:
    """1,500 float32 rows with a few duplicates, shuffled with their names and labels."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 12, 1500)
    x = (rng.normal(size=(12, 64))[truth] + 1.2 * rng.normal(size=(1500, 64))).astype(np.float32)
    x[:20] = x[20:40]
    labels = np.where((truth < 7) & (rng.random(1500) < 0.5), truth, -1)
    names = np.array([f"{i:04d}" for i in range(1500)])
    found = []
    for order in np.arange(1500), rng.permutation(1500), np.arange(1500)[::-1]:
        given = embedded(x[order], labels[order], tuple("abcdefg"), names[order].tolist())
        run = cluster_embeddings(
            given, tmp_path / "run", ClusterSettings(n_clusters=12), device="cpu", force=True
        )
        header, *rows = (run.path / "assignments.csv").read_text().splitlines()
        found.append((header, sorted(rows), (run.path / "categories.csv").read_text()))
    assert found[0] == found[1] == found[2]


def test_the_run_can_be_opened_with_its_settings(given: Embeddings, tmp_path: Path) -> None:
    cluster_embeddings(
        given,
        tmp_path / "run",
        ClusterSettings(n_clusters=5),
        device="cpu",
        command="shoal cluster x",
    )
    run = Run.open(tmp_path / "run")
    assert run.config["n_clusters"] == 5
    assert run.config["inference"]["shift"]["n_neighbors"] == 8
    assert run.provenance["command"] == "shoal cluster x"
    assert run.json("estimate")["is_given"]
    assert run.n_clusters_interval is None


def test_the_interval_of_the_estimate_is_written(given: Embeddings, tmp_path: Path) -> None:
    run = cluster_embeddings(given, tmp_path / "run", device="cpu")
    assert run.n_clusters_interval == tuple(run.json("estimate")["interval"])
    assert run.n_clusters_interval[0] <= run.n_clusters <= run.n_clusters_interval[1]


@pytest.mark.parametrize(("n_each", "rule"), [(1, "gap"), (2, None), (12, None)])
def test_with_too_few_labels_another_rule_is_used_and_reported(
    n_each: int, rule: str | None, tmp_path: Path
) -> None:
    truth = np.arange(125) % 5
    x = np.eye(5)[truth] + 0.25 * np.random.default_rng(0).normal(size=(125, 5))
    labels = np.where((truth < 3) & (np.arange(125) < 5 * n_each), truth, -1)
    output: list[str] = []
    reporter = Reporter(report=output.append)
    run = cluster_embeddings(embedded(x, labels), tmp_path / "run", device="cpu", reporter=reporter)
    assert run.json("estimate")["rule"] == (rule or "pairs")
    assert any(f"from {3 * n_each} labeled images of 3 known" in line for line in output)
