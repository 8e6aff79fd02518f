"""Exports read by the programs they are for: the readers of Label Studio, FiftyOne and COCO.

These programs are large or need other versions of our dependencies, so they may be installed in a
separate environment:

    SHOAL_READERS=/that/environment/bin/python pytest tests/discovery/export -k readers
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shoal.boxes import Box, box_name, split_name
from shoal.discovery.export.formats import export_run
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from small_runs import write_small

READERS = os.environ.get("SHOAL_READERS", sys.executable)
HOSTILE = 'egret & "co" <b>'

LABEL_STUDIO = """
import csv, json, pathlib, sys, tempfile
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
folder = pathlib.Path(sys.argv[1])
config, tasks = (folder / "labels.xml").read_text(), json.loads((folder / "tasks.json").read_text())
interface = LabelInterface(config)
interface.validate()
fits = [
    interface.validate_task({"data": task["data"]})
    and all(interface.validate_annotation(one) for one in task.get("annotations", []))
    and all(interface.validate_prediction(one) for one in task.get("predictions", []))
    for task in tasks
]
with tempfile.TemporaryDirectory() as out:
    for at, task in enumerate(tasks):  # numbered, as the server does when it takes them in
        task["id"] = at
        for annotation in task.setdefault("annotations", []):
            annotation["id"] = at
    kept = pathlib.Path(out, "tasks.json")
    kept.write_text(json.dumps(tasks))
    Converter(config, project_dir=None, download_resources=False).convert_to_csv(
        str(kept), out, is_dir=False, sep=",", header=True
    )
    (file,) = pathlib.Path(out).glob("*.csv")
    output = {row["path"]: row["category"] for row in csv.DictReader(file.open(newline=""))}
print(json.dumps({"fits": fits, "output": output}))
"""

FIFTYONE = """
import json, sys
from fiftyone.utils.data.importers import FiftyOneImageClassificationDatasetImporter
with FiftyOneImageClassificationDatasetImporter(dataset_dir=sys.argv[1]) as found:
    rows = [(path, label and [label.label, label.confidence]) for path, _, label in found]
print(json.dumps(rows))
"""

LABEL_STUDIO_BOXES = """
import json, pathlib, sys
from label_studio_sdk.label_interface import LabelInterface
folder = pathlib.Path(sys.argv[1])
interface = LabelInterface((folder / "labels.xml").read_text())
interface.validate()
rows = {}
for task in json.loads((folder / "tasks.json").read_text()):
    (found,) = task["predictions"]
    fits = interface.validate_task({"data": task["data"]}) and interface.validate_prediction(found)
    rows[task["data"]["path"]] = [fits, [each["value"] for each in found["result"]]]
print(json.dumps(rows))
"""

FIFTYONE_BOXES = """
import json, sys
from fiftyone.utils.data.importers import FiftyOneImageDetectionDatasetImporter
from fiftyone.utils.yolo import YOLOv5DatasetImporter
reader = FiftyOneImageDetectionDatasetImporter
options = {"dataset_dir": sys.argv[1]}
if sys.argv[2] == "yolo":
    reader = YOLOv5DatasetImporter
    options |= {"split": "train", "yaml_path": "data.yaml"}
with reader(**options) as found:
    rows = [
        (path, [[each.label, each.bounding_box] for each in label.detections if label])
        for path, _, label in found
    ]
print(json.dumps(rows))
"""

COCO = """
import json, pathlib, sys
from pycocotools.coco import COCO
found = COCO(pathlib.Path(sys.argv[1], "annotations.json"))
rows = []
for one in found.loadAnns(found.getAnnIds()):
    (image,), (category,) = found.loadImgs(one["image_id"]), found.loadCats(one["category_id"])
    rows.append([image["file_name"], category["name"], one["bbox"], one["status"]])
print()
print(json.dumps({"n_images": len(found.getImgIds()), "rows": rows}))
"""


@pytest.fixture
def reviewed(tmp_path: Path) -> ReviewedRun:
    run = write_small(tmp_path / "run")
    (tmp_path / "photos").mkdir()
    for row in run.assignments:
        Image.new("RGB", (9, 9)).save(tmp_path / "photos" / row.path)
    run.note(root=str(tmp_path / "photos"), folders=["."])
    review = Review(run)
    review.act(verbs.decide, "confirm", None, ["01.png"])
    review.act(verbs.decide, "reject", None, ["02.png"])
    review.act(verbs.move, ["05.png"], HOSTILE)
    return ReviewedRun.open(run.path)


@pytest.fixture
def boxed(tmp_path: Path) -> ReviewedRun:
    """A review of twelve boxes, four in each of three images of 40 x 10 pixels."""
    run = write_small(tmp_path / "boxed")
    boxes = [Box(10 * (row % 4), 5, 8, 5) for row in range(12)]
    names = [box_name(f"{row // 4}.png", box) for row, box in enumerate(boxes)]
    named = zip(run.assignments, names, strict=True)
    run.write_assignments([replace(row, path=name) for row, name in named])
    (tmp_path / "photos").mkdir()
    for image in range(3):
        Image.new("RGB", (40, 10)).save(tmp_path / "photos" / f"{image}.png")
    run.note(root=str(tmp_path / "photos"), folders=["."])
    review = Review(run)
    review.act(verbs.decide, "reject", None, [names[2]])
    review.act(verbs.move, [names[4]], HOSTILE)
    return ReviewedRun.open(run.path)


def read_by(package: str, script: str, folder: Path, *given: str) -> Any:
    """Return what the reader of another program returns for an export."""
    if subprocess.run(
        [READERS, "-c", f"import {package}"], capture_output=True, check=False
    ).returncode:
        pytest.skip(
            f"{package}: not installed for {READERS}; SHOAL_READERS names a Python that has it"
        )
    done = subprocess.run(
        [READERS, "-c", script, str(folder), *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_label_studio_reads_every_task_and_annotation(
    reviewed: ReviewedRun, tmp_path: Path
) -> None:
    out = export_run(reviewed, "labelstudio", tmp_path / "out").folder
    found = read_by("label_studio_sdk", LABEL_STUDIO, out)
    assert found["fits"] == [True] * 12
    output = {path: category for path, category in found["output"].items() if category}
    assert output == {"00.png": "gull", "01.png": "gull", "03.png": "heron", "05.png": HOSTILE}


def test_fiftyone_reads_every_image_with_its_reviewed_category(
    reviewed: ReviewedRun, tmp_path: Path
) -> None:
    out = export_run(reviewed, "fiftyone", tmp_path / "out").folder
    found = {
        Path(path).stem: label
        for path, label in read_by("fiftyone.utils.data.importers", FIFTYONE, out)
    }
    assert len(found) == 12
    assert found["00000002"] is None  # the image was rejected
    assert found["00000005"] == [HOSTILE, 1.0]
    assert found["00000001"][0] == "gull"
    rows = reviewed.assignments
    assert {stem: label and label[0] for stem, label in found.items()} == {
        f"{at:08d}": row.category or None for at, row in enumerate(rows)
    }


def test_coco_reads_every_image_with_its_reviewed_category(
    reviewed: ReviewedRun, tmp_path: Path
) -> None:
    out = export_run(reviewed, "coco", tmp_path / "out").folder
    found = read_by("pycocotools", COCO, out)
    assert found["n_images"] == 12
    assert found["rows"] == [
        [row.path, row.category, [0, 0, 9, 9], row.status]
        for row in reviewed.assignments
        if row.category
    ]
    assert len(found["rows"]) == 11  # one image was rejected


def test_coco_reads_every_box(boxed: ReviewedRun, tmp_path: Path) -> None:
    out = export_run(boxed, "coco", tmp_path / "out").folder
    found = read_by("pycocotools", COCO, out)
    assert found["n_images"] == 3
    boxes = [(row.box, split_name(row.path)[0], row) for row in boxed.assignments if row.category]
    assert found["rows"] == [
        [image, row.category, [*box], row.status] for box, image, row in boxes if box
    ]
    assert len(found["rows"]) == 11


@pytest.mark.parametrize("form", ["fiftyone", "yolo"])
def test_fiftyone_reads_every_box(boxed: ReviewedRun, tmp_path: Path, form: str) -> None:
    out = export_run(boxed, form, tmp_path / "out").folder
    found = read_by("fiftyone.utils.data.importers", FIFTYONE_BOXES, out, form)
    assert [len(boxes) for _, boxes in found] == [3, 4, 4]  # the first image has a rejected one
    assert [Path(path).resolve().name for path, _ in found] == ["0.png", "1.png", "2.png"]
    categories = [row.category for row in boxed.assignments if row.category]
    assert [label for _, boxes in found for label, _ in boxes] == categories
    assert found[1][1][1][1] == pytest.approx([0.25, 0.5, 0.2, 0.5])


def test_label_studio_reads_every_box(boxed: ReviewedRun, tmp_path: Path) -> None:
    out = export_run(boxed, "labelstudio", tmp_path / "out").folder
    found = read_by("label_studio_sdk", LABEL_STUDIO_BOXES, out)
    assert {path: (fits, len(boxes)) for path, (fits, boxes) in found.items()} == {
        "0.png": (True, 3),
        "1.png": (True, 4),
        "2.png": (True, 4),
    }
    place = {"x": 25, "y": 50, "width": 20, "height": 50, "rotation": 0}
    assert found["1.png"][1][1] == place | {"rectanglelabels": ["heron"]}
