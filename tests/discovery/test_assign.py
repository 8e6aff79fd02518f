"""Assign new images to a finished run: existing ids, or -1 if their category may be new."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shoal
from photo_runs import run_on
from shoal.clustering.estimators import MeanShiftClustering
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.discovery import assign as module
from shoal.discovery.assign import Assigner
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.reporter import Reporter
from shoal.discovery.results import ClusterSettings, cluster_embeddings
from shoal.encoders.vision import HeadSettings
from shoal.errors import DataError, UsageError
from shoal.runs import Run
from shoal.settings import dump_settings
from small_runs import embedded_five
from stores import write_tars

pytestmark = pytest.mark.usefixtures("one_thread")


def discovered(photos, out: Path, **changes) -> Run:
    settings = choose_settings(config=photos.config, n_clusters=5)
    return run_on(photos, out, replace(settings, **changes))


BOTTLENECK = HeadSettings(kind="bottleneck", width=24, dim=12, bottleneck=8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["both", "trained", "bottleneck", "frozen"])
def test_images_of_the_run_are_embedded_identically(photos, tmp_path: Path, kind: str) -> None:
    cms = choose_settings(config=photos.config).method_settings
    changes = {
        "both": {},  # no labels evaluate training, so both encoders are blended
        "trained": {"hidden_share": 0.0},
        "bottleneck": {"hidden_share": 0.0, "method_settings": replace(cms, head=BOTTLENECK)},
        "frozen": {"train": False},
    }
    run = discovered(photos, tmp_path / "run", **changes[kind])
    again = Assigner(run, device="cpu").networks.embed(
        load_pixels(read_collection(photos.folder, False), 16)
    )
    assert again.shape[1] == {"both": 16 + 12, "trained": 12, "bottleneck": 12, "frozen": 16}[kind]
    assert np.allclose(again.numpy(), run.array("embeddings"), atol=1e-6)


@pytest.mark.parametrize("train", [True, False], ids=["trained", "frozen"])
def test_images_of_the_run_are_assigned_to_their_categories(
    same_photos, discover_same, train: bool, monkeypatch
) -> None:
    """Exceptions are images above the outlier threshold: at most one of 60."""
    run = Run(discover_same(train))
    monkeypatch.setattr(module, "EMBED_BATCH", 15)
    monkeypatch.setattr(module, "ASSIGN_BATCH", 25)
    messages: list[str] = []
    assigner = Assigner(run, device="cpu", reporter=Reporter(messages.append))
    rows, skipped = assigner.assign_images(read_collection(same_photos.folder, False))
    assert messages == []
    assert not skipped
    changed = [
        new
        for new, old in zip(rows, run.assignments, strict=True)
        if new.category_id != old.category_id
    ]
    assert len(changed) <= 1
    assert {row.category_id for row in changed} <= {-1}


def test_assigning_does_not_change_the_run(same_photos, discover_same) -> None:
    run = Run(discover_same(train=True))
    before = {file.name: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assigner = Assigner(run, device="cpu")
    for name in sorted(same_photos.truth)[:3]:
        rows, _ = assigner.assign(same_photos.folder / name)
        assert [row.path for row in rows] == [name]
    after = {file.name: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assert after == before


def test_an_outlier_is_possibly_new(discover_same, tmp_path: Path) -> None:
    """Black and white stripes among noisy colors; the threshold is the largest score of the run."""
    run = Run(discover_same())
    new = tmp_path / "new"
    new.mkdir()
    stripes = np.zeros((20, 20, 3), dtype=np.uint8)
    stripes[::4] = 255
    Image.fromarray(stripes).save(new / "stripes.png")
    (new / "broken.png").write_bytes(b"")
    assigner = Assigner(run, outlier_share=0.0, device="cpu")
    rows, skipped = assigner.assign(new)
    assert list(skipped) == ["broken.png"]
    assert assigner.threshold == pytest.approx(max(row.outlier_score for row in run.assignments))
    (row,) = rows
    assert row.outlier_score > assigner.threshold
    assert (row.category_id, row.category, row.is_novel, row.confidence) == (-1, "", True, 0.0)
    assert row.second_category in {category.category for category in run.categories}


@pytest.fixture
def clustered(tmp_path: Path) -> Run:
    """A run made from embeddings."""
    settings = ClusterSettings(n_clusters=5)
    return cluster_embeddings(embedded_five(), tmp_path / "run", settings, device="cpu")


def test_embeddings_are_assigned_as_the_estimator_predicts(clustered: Run) -> None:
    given = embedded_five()
    model = MeanShiftClustering(n_clusters=5, device="cpu").fit(given.x, given.labels)
    new = np.random.default_rng(1).normal(size=(200, 5)).astype(np.float32)
    rows = Assigner(clustered, device="cpu").assign_embeddings([str(i) for i in range(200)], new)
    predicted = model.predict(new)
    assert [row.category_id for row in rows] == predicted.tolist()
    assert (predicted == -1).any()
    assert (predicted >= 0).any()


def test_assigning_in_blocks_gives_the_same_rows_and_names_bad_ones(
    clustered: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigner = Assigner(clustered, device="cpu")
    x = embedded_five().x.astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    whole = assigner.assign(tmp_path / "x.npy")
    monkeypatch.setattr(module, "ASSIGN_BATCH", 7)
    assert assigner.assign(tmp_path / "x.npy") == whole
    x[9] = 0
    with pytest.raises(DataError, match=r"only zeros in row 9 \(1 of"):
        assigner.assign_embeddings([f"{i}" for i in range(len(x))], x)


def test_a_run_made_from_embeddings_accepts_embeddings_but_no_images(
    clustered: Run, same_photos, tmp_path: Path
) -> None:
    assigner = Assigner(clustered, device="cpu")
    with pytest.raises(UsageError, match="made from precomputed embeddings"):
        assigner.assign(same_photos.folder)
    np.savez(tmp_path / "new.npz", X=embedded_five().x[:4], paths=np.array(["p", "q", "r", "s"]))
    rows, _ = assigner.assign(tmp_path / "new.npz")
    assert [row.path for row in rows] == ["p", "q", "r", "s"]
    before = clustered.assignments[:4]
    assert [row.category_id for row in rows] == [row.category_id for row in before]


def test_embeddings_of_another_encoder_are_refused(clustered: Run) -> None:
    with pytest.raises(DataError, match=r"found shape \(2, 3\), expected \(2, 5\)"):
        Assigner(clustered, device="cpu").assign_embeddings(["a", "b"], np.ones((2, 3)))
    with pytest.raises(UsageError, match="outlier_share: found 1"):
        Assigner(clustered, outlier_share=1)


def test_a_wrong_setting_of_a_run_is_reported_with_its_file(
    clustered: Run,
) -> None:
    run = clustered
    file = run.path / "config.yaml"
    of_images = dump_settings(DiscoverySettings(train=False))
    for config, value, read, problem in (
        (file.read_text(), "n_neighbors: many", "shift", "shift: n_neighbors: found 'many'"),
        (of_images, "input_size: abc", "settings", "cms: input_size: found 'abc'"),
        (of_images, "seed: -1", "settings", "seed: found -1"),
    ):
        file.write_text(re.sub(rf"\b{value.partition(':')[0]}: .*", value, config, count=1))
        with pytest.raises(DataError, match=rf"config.yaml: .*{problem}"):
            getattr(Assigner(run, device="cpu"), read)
    for value, problem in (
        ("encoder: nope", "no encoder 'nope'"),
        ("input_size: -4", "input size: found -4"),
    ):
        file.write_text(re.sub(rf"\b{value.partition(':')[0]}: .*", value, of_images, count=1))
        with pytest.raises(DataError, match=rf"damaged or edited, .*{problem}"):
            _ = Assigner(run, device="cpu").networks


def test_a_trained_run_without_its_model_is_refused(discover_same, tmp_path: Path) -> None:
    run = Run(discover_same(train=True))
    about = run.json("model")
    run.write_json("model", about | {"n_tail_blocks": 99})
    with pytest.raises(DataError, match="damaged or edited, n_tail_blocks: found 99"):
        _ = Assigner(run, device="cpu").networks
    (tmp_path / "empty").mkdir()
    for part in ("model.json", "model.safetensors"):
        (run.path / part).unlink()
        with pytest.raises(DataError, match=f"{part}: missing"):
            Assigner(run, device="cpu").assign(tmp_path / "empty")  # before images are read
        run.write_json("model", about)


def test_images_are_assigned_to_a_run_with_the_frozen_result(photos, tmp_path: Path) -> None:
    """Training was requested, but the time limit left no time for it."""
    run = discovered(photos, tmp_path / "run", max_minutes=1e-6)
    rows, _ = Assigner(run, device="cpu").assign(photos.folder / min(photos.truth))
    assert [row.category for row in rows] == [run.assignments[0].category]


def test_readable_images_of_damaged_shards_are_assigned(
    same_photos, discover_same, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    run = Run(discover_same())
    shards = write_tars(same_photos.folder, {}, tmp_path / "shards")
    (tmp_path / "shards" / "photos-001.tar").write_bytes(b"no tar file" * 500)
    with pytest.raises(DataError, match=r"photos-001.tar: .*allow_missing"):
        shoal.load(run.path).predict(shards, device="cpu")
    with caplog.at_level(logging.WARNING, logger="shoal"):
        rows = shoal.load(run.path).predict(shards, allow_missing=True, device="cpu")
    assert [row.path for row in rows] == sorted(same_photos.truth)[0::2]
    assert "note: photos-001.tar: " in caplog.text


def test_damaged_embeddings_are_refused_by_assign_and_by_the_report(
    clustered: Run, tmp_path: Path
) -> None:
    run = clustered
    whole = np.array(run.array("embeddings"))
    for row, value in ((3, np.nan), (7, 0.0)):
        broken = whole.copy()
        broken[row] = value
        run.write_array("embeddings", broken)
        for read in (
            lambda: Assigner(run, device="cpu"),
            lambda: shoal.load(run.path).report(tmp_path / "r.html"),
        ):
            with pytest.raises(DataError, match=rf"embeddings.npy: .* in row {row} "):
                read()


def test_inconsistent_tables_of_a_run_are_refused(same_photos, discover_same) -> None:
    run = Run(discover_same())
    run.write_array("embeddings", np.array(run.array("embeddings")[:, :5]))
    with pytest.raises(DataError, match=r"embeddings: found shape \(1, 16\), expected \(1, 5\)"):
        Assigner(run, device="cpu").assign(same_photos.folder / min(same_photos.truth))
    run.write_assignments([replace(row, outlier_score=float("nan")) for row in run.assignments])
    with pytest.raises(DataError, match=r"assignments.csv: .*outlier_score: an image has none"):
        Assigner(run, device="cpu")
