"""Discovery on boxes in images gives the same result as on single files with the same pixels."""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pasted_photos import CANVAS, Pasted, paste_photos, write_coco, write_megadetector
from shoal.boxes import Box, box_name
from shoal.data.collection import Collection
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions
from shoal.discovery.api import discover, refine
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.runs import Assignment

SETTINGS = {"train": False, "n_clusters": 5, "verbose": False, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("boxes")


@pytest.fixture(scope="module")
def pasted(folder: Path) -> list[Pasted]:
    return paste_photos(folder / "single", folder / "pasted", 40)


@pytest.fixture(scope="module")
def run(folder: Path, pasted: list[Pasted], tiny_encoder: Path) -> DiscoveredRun:
    return discover(
        folder / "pasted",
        boxes=write_coco(folder / "coco.json", pasted),
        out=folder / "run",
        encoder=str(tiny_encoder),
        **SETTINGS,
    )


def groups(rows: Iterable[Assignment], photo_of: dict[str, str]) -> set[frozenset[str]]:
    """The photographs of each category."""
    members = defaultdict(set)
    for row in rows:
        members[row.category].add(photo_of[row.path])
    return {frozenset(group) for group in members.values()}


def test_boxes_have_the_pixels_of_single_files(folder: Path, pasted: list[Pasted]) -> None:
    boxes = BoxOptions(source=write_megadetector(folder / "detections.json", pasted))
    items = load_pixels(read_collection(folder / "pasted", boxes=boxes), 160)
    files = load_pixels(read_collection(folder / "single"), 160)
    assert len(items) == len(pasted)
    for each in pasted:  # every shorter side has 160 pixels, so nothing is scaled
        item = items[items.names.index(each.item)]
        np.testing.assert_array_equal(item, files[files.names.index(each.file)])


def test_boxes_get_the_categories_of_single_files(
    folder: Path, pasted: list[Pasted], run: DiscoveredRun, tiny_encoder: Path
) -> None:
    labels = {each.file: each.label for each in pasted if each.label is not None}
    single = discover(
        folder / "single",
        labels,
        out=folder / "single-run",
        encoder=str(tiny_encoder),
        **SETTINGS,
    )
    same_name = {each.file: each.file for each in pasted}
    photo_of = {each.item: each.file for each in pasted}
    assert groups(run.assignments, photo_of) == groups(single.assignments, same_name)
    label_of = {each.item: each.label or "" for each in pasted}
    assert {row.path: row.label_given for row in run.assignments} == label_of
    truth = {each.item: each.truth for each in pasted}
    assert run.evaluate(truth).n_images == list(label_of.values()).count("")


def test_the_table_has_the_boxes_only_if_there_are_any(folder: Path, run: DiscoveredRun) -> None:
    with (run.path / "assignments.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, assignment in zip(rows, run.assignments, strict=True):
        numbers = ",".join(row[name] for name in ("x", "y", "width", "height"))
        assert row["path"].endswith(f"#xywh={numbers}")
        assert assignment.path == row["path"]
    later = folder / "whole"
    run.export("csv", later)
    assert (later / "assignments.csv").read_bytes() == (run.path / "assignments.csv").read_bytes()


def labels_of(collection: Collection) -> dict[str, str]:
    pairs = zip(collection.names, collection.labels, strict=True)
    return {name: collection.classes[label] for name, label in pairs if label >= 0}


def test_exports_are_read_back(run: DiscoveredRun, folder: Path, tmp_path: Path) -> None:
    expected = {row.path: row.label_given or row.category for row in run.assignments}
    images = folder / "pasted"
    run.export("yolo", tmp_path / "yolo")
    boxes = BoxOptions(source=tmp_path / "yolo" / "labels")
    assert labels_of(read_collection(images, boxes=boxes)) == expected
    whole = read_collection(tmp_path / "yolo", boxes=BoxOptions(source=tmp_path / "yolo"))
    assert labels_of(whole) == {f"images/{name}": label for name, label in expected.items()}


def test_coco_in_and_out_is_the_same(run: DiscoveredRun, folder: Path, tmp_path: Path) -> None:
    file = run.export("coco", tmp_path / "coco").folder / "annotations.json"
    given, found = (
        read_collection(folder / "pasted", boxes=BoxOptions(source=each))
        for each in (folder / "coco.json", file)
    )
    assert found.names == given.names
    assert not found.left_out  # the sizes of the images are those in the file
    categories = {row.path: row.category for row in run.assignments}
    assert labels_of(found) == categories | labels_of(given)


def test_label_studio_has_a_rectangle_per_box(run: DiscoveredRun, tmp_path: Path) -> None:
    tasks = json.loads(
        (run.export("labelstudio", tmp_path / "ls").folder / "tasks.json").read_text()
    )
    found = {}
    for task in tasks:
        for each in task["predictions"][0]["result"]:
            value = each["value"]
            sides = [value["x"], value["y"], value["width"], value["height"]]
            scale = [each["original_width"], each["original_height"]] * 2
            box = Box(*(round(side * most / 100) for side, most in zip(sides, scale, strict=True)))
            found[box_name(task["data"]["path"], box)] = value["rectanglelabels"]
    assert found == {row.path: [row.category] for row in run.assignments}
    n_annotated = sum(
        len(task["annotations"][0]["result"]) for task in tasks if "annotations" in task
    )
    assert n_annotated == sum(bool(row.label_given) for row in run.assignments)


def test_crops_and_detections_are_exported(
    run: DiscoveredRun, folder: Path, pasted: list[Pasted], tmp_path: Path
) -> None:
    crops = run.export("imagefolder", tmp_path / "crops").folder
    single = {each.item: folder / "single" / each.file for each in pasted}
    with (crops / "export.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            crop = Image.open(crops / row["file"])
            assert crop.tobytes() == Image.open(single[row["path"]]).tobytes()
    assert len(labels_of(read_collection(crops))) == len(pasted)
    run.export("fiftyone", tmp_path / "fiftyone")
    labels = json.loads((tmp_path / "fiftyone" / "labels.json").read_text())["labels"]
    boxes = [each["bounding_box"] for image in labels.values() for each in image]
    width, height = CANVAS
    left = sorted(each.box.x / width for each in pasted)
    assert sorted(box[0] for box in boxes) == pytest.approx(left)
    bottom = sorted((each.box.y + each.box.height) / height for each in pasted)
    assert sorted(box[1] + box[3] for box in boxes) == pytest.approx(bottom)


def test_a_review_names_boxes_and_the_next_run_continues(run: DiscoveredRun, folder: Path) -> None:
    item = next(row.path for row in run.assignments if not row.label_given)
    run.move([item], run.categories[0].category)
    better = refine(run, out=folder / "refined", train=False, verbose=False, device="cpu")
    found = {row.path: row for row in better.assignments}
    assert found[item].label_given == run.categories[0].category
    assert list(found) == [row.path for row in run.assignments]
