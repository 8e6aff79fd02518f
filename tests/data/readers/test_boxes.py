"""Boxes in every format become items with their labels; errors in the input are reported with their
place."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions
from shoal.errors import DataError, UsageError
from stores import labels_by_name

WIDTH, HEIGHT = 100, 50
A = "a.png#xywh=10,20,30,10"
B = "sub/b.png#xywh=0,0,100,50"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three images of 100 x 50 pixels."""
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.png", "c.png"):
        Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def megadetector(**info: object) -> dict[str, object]:
    """Return detections of high and low confidence, of another class, and of a failed image."""
    return {
        "info": info,
        "detection_categories": {"1": "animal", "2": "person"},
        "images": [
            {
                "file": "a.png",
                "detections": [
                    {"category": "1", "conf": 0.9, "bbox": [0.1, 0.4, 0.3, 0.2]},
                    {"category": "1", "conf": 0.15, "bbox": [0.5, 0.5, 0.1, 0.1]},
                ],
            },
            {
                "file": "sub/b.png",
                "detections": [{"category": "2", "conf": 1, "bbox": [0, 0, 1, 1]}],
            },
            {"file": "c.png", "failure": "image access failure", "detections": None},
        ],
    }


def coco(**changes: object) -> dict[str, object]:
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT},
            {"id": 8, "file_name": "sub/b.png"},
        ],
        "categories": [{"id": 3, "name": "heron"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 10]},
            {"id": 2, "image_id": 8, "bbox": [0, 0, 100, 50]},
        ],
    } | changes


def write_json(file: Path, content: object) -> Path:
    file.write_text(json.dumps(content, indent=1))
    return file


def read(root: Path, source: object, labels: object = None, **options: object) -> Collection:
    return read_collection(root, labels, boxes=BoxOptions(source=source, **options))


def write_yolo(root: Path) -> Path:
    """Write boxes beside the image and in labels/ with the same path, and the names of classes."""
    (root / "labels" / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("1 0.25 0.5 0.3 0.2\n")
    (root / "labels" / "sub" / "b.txt").write_text("0 0.5 0.5 1 1 0.75\n\n")
    (root / "classes.txt").write_text("gull\nheron\n")
    return root


def test_every_format_gives_the_same_boxes(root: Path, tmp_path: Path) -> None:
    pixels = pd.DataFrame(
        {
            "path": ["a.png", "sub/b.png"],
            "x": [10, 0],
            "y": [20, 0],
            "width": [30, 100],
            "height": [10, 50],
            "label": ["heron", ""],
        }
    )
    relative = pixels.assign(x=[0.1, 0], y=[0.4, 0], width=[0.3, 1], height=[0.2, 1])
    pixels.to_csv(tmp_path / "pixels.csv", index=False)
    relative.to_csv(root / "relative.csv", index=False)
    heron = {A: "heron", B: None}
    for table in (tmp_path / "pixels.csv", root / "relative.csv", pixels, relative):
        assert labels_by_name(read(root, table)) == heron
    assert labels_by_name(read(root, write_json(tmp_path / "coco.json", coco()))) == heron
    found = read(root, write_json(tmp_path / "detections.json", megadetector()))
    assert labels_by_name(found) == {A: None, B: "sub"}  # labeled by folder, as without boxes
    assert labels_by_name(read(root, write_yolo(root))) == {A: "heron", B: "gull"}


def test_boxes_below_the_confidence_are_left_out(root: Path, tmp_path: Path) -> None:
    unsure = "a.png#xywh=50,25,10,5"
    file = write_json(tmp_path / "d.json", megadetector())
    found = read(root, file)
    assert found.names == (A, B)
    assert any(note.endswith(": 1 animal, 1 person") for note in found.notes)
    assert "1 box with a confidence below 0.2: left out" in found.notes
    assert read(root, file, min_confidence=0.1).names == (A, unsure, B)
    assert read(root, file, min_confidence=0.95).names == (B,)
    metadata = {"typical_detection_threshold": 0.1}
    lower = write_json(tmp_path / "lower.json", megadetector(detector_metadata=metadata))
    assert read(root, lower).names == (A, unsure, B)
    assert read(root, write_yolo(root), min_confidence=0.5).names == (A, B)
    assert read(root, root, min_confidence=0.8).names == (A,)
    with pytest.raises(UsageError, match="no confidence"):
        read(root, write_json(tmp_path / "c.json", coco()), min_confidence=0.5)


def test_images_without_a_box_are_counted_or_items(root: Path, tmp_path: Path) -> None:
    file = write_json(tmp_path / "coco.json", coco())
    without = read(root, file)
    assert any(note.startswith("1 image without a box") for note in without.notes)
    assert read(root, file, whole_images=True).names == (A, "c.png", B)


def test_boxes_are_widened_and_clipped(root: Path) -> None:
    frame = pd.DataFrame(
        {"path": ["a.png", "c.png"], "x": [10, -5], "y": [20, 45], "width": 30, "height": 10}
    )
    assert read(root, frame).names == (A, "c.png#xywh=0,45,25,5")
    wider = read(root, frame, margin=0.1)
    assert wider.names == ("a.png#xywh=7,19,36,12", "c.png#xywh=0,44,28,6")
    huge = frame.assign(x=1e308, width=[1e308, 3])
    with pytest.raises(DataError, match="2 boxes skipped"):
        read(root, huge)
    everything = ("a.png#xywh=0,0,100,50", "c.png#xywh=0,0,100,50")
    assert read(root, frame, margin=1e308).names == everything


def test_boxes_that_cannot_be_cut_are_skipped_by_line(root: Path) -> None:
    (root / "broken.png").write_bytes(b"x")
    (root / "boxes.csv").write_text(
        "path,x,y,width,height\n"
        "a.png,10,20,30,10\n"
        "a.png,10,20,0,10\n"
        "a.png,200,20,30,10\n"
        "a.png,0.2,0.2,0.2,0.2\n"
        "broken.png,0,0,5,5\n"
    )
    found = read(root, root / "boxes.csv")
    assert found.names == (A,)
    lines = sorted(reason.rpartition("line ")[2] for reason in found.left_out.values())
    assert lines == ["3)", "4)", "5)", "6)"]
    assert any(note.startswith("4 boxes skipped") for note in found.notes)


def test_coordinates_are_those_of_the_upright_image(root: Path, tmp_path: Path) -> None:
    """A file of 100 x 50 pixels has an EXIF orientation that displays it 50 wide and 100 high."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("turned.jpg", "turned.tif"):
        Image.new("RGB", (WIDTH, HEIGHT)).save(root / name, exif=exif)
        frame = pd.DataFrame({"path": [name], "x": 0, "y": 0.5, "width": 1, "height": 0.5})
        assert read(root, frame).names == (f"{name}#xywh=0,50,50,50",)
    unturned = coco(
        images=[
            {"id": 7, "file_name": "turned.jpg", "width": WIDTH, "height": HEIGHT},
            {"id": 8, "file_name": "sub/b.png"},
        ]
    )
    found = read(root, write_json(tmp_path / "coco.json", unturned))
    assert list(found.left_out) == ["turned.jpg#xywh=10,20,30,10"]


def test_given_labels_are_of_boxes_or_of_their_images(root: Path, tmp_path: Path) -> None:
    file = write_json(tmp_path / "coco.json", coco())
    assert labels_by_name(read(root, file, {A: "gull"})) == {A: "gull", B: None}
    assert labels_by_name(read(root, file, {"a.png": "gull"})) == {A: "gull", B: None}
    assert labels_by_name(read(root, file, False)) == {A: None, B: None}
    assert labels_by_name(read(root, file, "folders")) == {A: None, B: "sub"}
    listed = [root / "a.png", root / "sub" / "b.png"]
    unlabeled = write_json(tmp_path / "d.json", megadetector())
    boxes = BoxOptions(source=unlabeled)
    found = read_collection(listed, ["gull", "tern"], boxes=boxes)
    assert labels_by_name(found) == {A: "gull", B: "tern"}
    two = read_collection(labeled=root, unlabeled=root / "sub", boxes=boxes)
    assert labels_by_name(two) == {A: None, B: "sub"}
    with pytest.raises(DataError, match="after margin"):
        read(root, file, {A: "gull"}, margin=0.1)


def test_a_box_with_two_labels_is_refused_and_a_repeated_one_counts_once(
    root: Path, tmp_path: Path
) -> None:
    box = {"image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 10]}
    categories = [{"id": 3, "name": "heron"}, {"id": 4, "name": "gull"}]
    twice = write_json(tmp_path / "twice.json", coco(annotations=[box, box]))
    found = read(root, twice)
    assert labels_by_name(found) == {A: "heron"}
    other = coco(annotations=[box, box | {"category_id": 4}], categories=categories)
    with pytest.raises(DataError, match=r"other\.json, annotation 1: .*gull.*heron"):
        read(root, write_json(tmp_path / "other.json", other))


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("b.json", "{\n\n,", "line 3"),
        ("b.json", "[]", "b.json"),
        ("b.json", "[" * 100_000, "b.json"),
        ("b.json", '{"images": [{"detections": [{"bbox": [0, 0, 1, 1]}]}]}', "b.json, image 0"),
        ("b.json", '{"images": [3]}', "b.json, image 0"),
        ("b.json", '{"images": [], "detection_categories": [1]}', "b.json"),
        ("b.json", json.dumps(coco(annotations=3)), "b.json"),
        ("b.json", json.dumps(coco(categories=3)), "b.json"),
        (
            "b.json",
            json.dumps(coco(annotations=[{"image_id": 9, "bbox": [0, 0, 1, 1]}])),
            "annotation 0",
        ),
        (
            "b.json",
            json.dumps(coco(annotations=[{"image_id": 7, "bbox": [0, 0, 1]}])),
            "annotation 0",
        ),
        (
            "b.json",
            json.dumps(coco(annotations=[{"image_id": 7, "bbox": [0, 0, 1, "x"]}])),
            "annotation 0",
        ),
        ("b.csv", "path,x,y,width\na.png,1,1,1\n", "height; add or rename it"),
        ("b.csv", "path,x,y,width,height\na.png,1,1,1,\n", "b.csv, line 2"),
        ("b.csv", "path,x,y,width,height\na.png,1,1,1,nan\n", "b.csv, line 2"),
        ("b.csv", "path,x,y,width,height\ngone.png,1,1,9,9\n", "b.csv, line 2"),
        ("b.csv", "path,x,y,width,height\n../a.png,1,1,9,9\n", "b.csv, line 2"),
        ("b.xml", "<a/>", "b.xml"),
        ("yolo/a.txt", "0 0.5 0.5 1 1\n0 0.5 0.5 1\n", "a.txt, line 2"),
        ("yolo/a.txt", "0 0.1 0.1 0.2 0.2 0.3 0.3 0.4\n", "a.txt, line 1"),
        ("yolo/a.txt", "0 0.5 0.5 1 one\n", "a.txt, line 1"),
        ("yolo/data.yaml", "names: 3\n", "data.yaml"),
        ("yolo/note.md", "", "boxes: found none"),
    ],
)
def test_bad_input_names_its_place(
    root: Path, tmp_path: Path, name: str, text: str, place: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    with pytest.raises(DataError) as error:
        read(root, file.parent if file.parent.name == "yolo" else file)
    assert place in str(error.value)
    assert "\n" not in str(error.value)


def test_options_without_sense_are_refused(root: Path, tmp_path: Path) -> None:
    file = write_json(tmp_path / "coco.json", coco())
    for name, value in (("margin", -1), ("margin", float("nan")), ("min_confidence", 2)):
        with pytest.raises(UsageError, match=f"^{name}: found {value}, expected [^;]+$"):
            BoxOptions(source=file, **{name: value})
    with pytest.raises(UsageError):
        BoxOptions(margin=0.1)
    with pytest.raises(UsageError, match="not local files"):
        read_collection(np.zeros((3, 4, 4), np.uint8), boxes=BoxOptions(source=file))
    with pytest.raises(DataError, match=r"gone\.json"):
        read(root, tmp_path / "gone.json")


def test_many_boxes_of_missing_images_are_refused(root: Path, tmp_path: Path) -> None:
    content = coco()
    images = content["images"]
    assert isinstance(images, list)
    boxes = [{"image_id": 7, "bbox": [i, 0, 9, 9]} for i in range(20)]
    gone = [{"image_id": 9, "bbox": [i, 0, 9, 9]} for i in range(5)]
    images.append({"id": 9, "file_name": "gone.png"})
    file = write_json(tmp_path / "coco.json", content | {"annotations": boxes + gone})
    with pytest.raises(DataError, match=r"5 of 25 .*annotation 20"):
        read(root, file)
    found = read_collection(root, boxes=BoxOptions(source=file), allow_missing=True)
    assert len(found) == 20
