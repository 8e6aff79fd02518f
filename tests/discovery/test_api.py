"""`shoal.discover` and the run it returns."""

import logging
from dataclasses import fields
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shoal
from conftest import write_table
from shoal.cli.discover import discover as command
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.job import ImageSource
from shoal.errors import DataError, UsageError
from shoal.report.figures import training_curves
from shoal.report.summary import summarize_run

pytestmark = pytest.mark.usefixtures("one_thread")


def test_discover_writes_categories_assignments_and_a_report(
    unchanged_photos, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shoal.discover(
        "photos/", labels="labels.csv", config=unchanged_photos.config, n_clusters=5, device="cpu"
    )
    assert run.n_clusters == len(run.categories) == 5
    assert len(run.assignments) == 60
    assert run.path == Path("runs/photos")
    report = run.report("deep/report.html")
    page = report.read_text(encoding="utf-8")
    assert page.startswith("<!")
    assert page.count("<path") > 50  # in the figures
    printed, output = capsys.readouterr()
    assert printed == ""
    assert output.splitlines()[0] == "60 images, 18 labeled in 3 categories, 42 unlabeled"
    lines = output.splitlines()
    assert lines.index("training, first epoch …") < lines.index("training …")
    again = shoal.load("runs/photos")
    assert again._repr_html_().count("<tr>") == 1 + 5
    assert summarize_run(again) in again._repr_html_()
    assert str(again.assignments) == str(run.assignments)
    assert again.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    rows, _ = again.assigner(device="cpu").assign(unchanged_photos.folder)
    assert len(rows) == 60


def test_notes_are_reported_before_images_are_refused(photos, tmp_path: Path, caplog) -> None:
    photos.labels.write_text(
        "path,label\ngone.png,red\n" + photos.labels.read_text().splitlines()[1]
    )
    options = {"out": tmp_path / "run", "device": "cpu", "verbose": False}
    with (
        caplog.at_level(logging.INFO, logger="shoal"),
        pytest.raises(DataError, match="at least 2 categories"),
    ):
        shoal.discover(photos.folder, photos.labels, config=photos.config, **options)
    assert any("1 row without an image" in record.message for record in caplog.records)


def test_images_in_memory_can_be_discovered(photos, tmp_path: Path) -> None:
    names = sorted(photos.truth)
    images = np.stack([np.asarray(Image.open(photos.folder / name)) for name in names])
    known = [
        photos.truth[name] if photos.truth[name] in ("red", "blue") and i % 2 else None
        for i, name in enumerate(names)
    ]
    run = shoal.discover(
        images, known, config=photos.config, train=False, out=tmp_path / "run", device="cpu"
    )
    assert [category.category for category in run.categories[:2]] == ["blue", "red"]
    given = [row.label_given or None for row in run.assignments]
    assert given == known


@pytest.mark.parametrize(
    ("images", "name"),
    [
        ("birds.2024", "birds.2024"),
        ("table.csv", "table"),
        ([1, 2], "images"),
        ("/", "images"),
        (Path("s3://bucket/birds.2024"), "birds.2024"),
        ("s3://bucket/data/shards-{000..012}.tar", "shards"),
        ("https://example.org/table.csv", "table"),
    ],
)
def test_the_default_run_folder_is_named_after_the_images(
    images, name: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "birds.2024").mkdir()
    assert ImageSource(images=images).default_folder == Path("runs") / name


@pytest.mark.slow
def test_the_report_of_a_trained_run_shows_losses_learning_rate_and_snapshot(
    unchanged_photos, tmp_path: Path
) -> None:
    """The report and the trainer use the same names of metrics."""
    photos = unchanged_photos
    run = shoal.discover(
        photos.folder, photos.labels, config=photos.config, out=tmp_path / "run", device="cpu"
    )
    panels = training_curves(run).axes
    assert [axes.get_ylabel() for axes in panels] == [
        "loss",
        "validation accuracy, %",
        "estimated K",
        "learning rate",
    ]
    assert [line.get_label() for line in panels[0].get_lines()[:3]] == [
        "total",
        "supervised",
        "with neighbors",
    ]
    assert any("snapshot: epoch" in text.get_text() for text in panels[0].texts)


def test_a_run_without_labels_has_a_report(photos, tmp_path: Path) -> None:
    run = shoal.discover(
        photos.folder,
        False,
        config=photos.config,
        n_clusters=5,
        train=False,
        out=tmp_path / "run",
        device="cpu",
    )
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Found 5 categories" in page
    assert "Before training" not in page


def test_columns_of_a_table_can_be_named(photos, tmp_path: Path) -> None:
    photos.labels.write_text(photos.labels.read_text().replace("path,label", "where,bird", 1))
    options = {"config": photos.config, "train": False, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(DataError, match="path_column"):
        shoal.discover(photos.folder, photos.labels, **options)
    run = shoal.discover(
        photos.folder, photos.labels, path_column="where", label_column="bird", **options
    )
    assert sum(bool(row.label_given) for row in run.assignments) == 18


def test_discover_has_the_same_arguments_in_python_and_on_the_command_line() -> None:
    """Exceptions: options that only a shell needs, and the reporter in Python. `settings` accepts
    further names."""
    ours, theirs, settings = (
        set(signature(one).parameters) for one in (shoal.discover, command, choose_settings)
    )
    assert theirs - {"dry_run", "json"} <= ours | settings | {
        one.name for one in fields(DiscoverySettings)
    }
    assert ours - {"reporter", "verbose", "settings"} <= theirs


def test_a_run_can_be_read_scored_exported_and_used_to_assign(photos, tmp_path: Path) -> None:
    options = {"config": photos.config, "train": False, "device": "cpu", "n_clusters": 5}
    run = shoal.discover(photos.folder, photos.labels, out=tmp_path / "run", **options)
    again = shoal.load(run.path)
    table = again.to_pandas()
    categories = again.to_pandas("categories")
    assert table["category"].tolist() == [row.category for row in run.assignments]
    assert categories["size"].sum() == len(table)
    with pytest.raises(UsageError, match="expected assignments or categories"):
        again.to_pandas("images")
    files = [photos.folder / row.path for row in run.assignments[:3]]
    expected = [row.category for row in run.assignments[:3]]
    pictures = [np.asarray(Image.open(file)) for file in files]
    for images in (files, pictures, np.array(run.array("embeddings")[:3])):
        assert [row.category for row in again.predict(images, device="cpu")] == expected
    assert len(again.predict(photos.folder, device="cpu")) == len(table)
    score = again.evaluate(photos.truth)
    assert score == again.evaluate(write_table(tmp_path / "truth.csv", photos.truth))
    frame = table.assign(label=[photos.truth[path] for path in table["path"]])[["path", "label"]]
    assert score == again.evaluate(frame)
    with pytest.raises(
        UsageError, match="truth: found int, expected a table, a data frame, an npy or a mapping"
    ):
        again.evaluate(5)
    assert again.json("accuracy")["all"] == score.accuracy.all
    assert again.export("csv", tmp_path / "csv").folder == tmp_path / "csv"
