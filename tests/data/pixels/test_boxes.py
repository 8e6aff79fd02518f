"""A box has the pixels of a file that contains only this box, and its image is decoded once."""

import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.boxes import Box, box_name
from shoal.data.pixels.decoding import decode_file, decode_whole
from shoal.data.pixels.loading import load_pixels
from shoal.data.pixels.workers import DecodingJob, _tasks, decode_rows
from shoal.data.readers import read_collection
from shoal.data.readers.boxes import BoxOptions

pytestmark = pytest.mark.usefixtures("decoded_in_threads")

SIZE = 24
BOXES = (Box(3, 5, 24, 24), Box(40, 0, 60, 31), Box(0, 60, 17, 40))


@pytest.fixture(params=["RGB", "L", "RGBA", "turned"])
def folders(request, tmp_path):
    """A folder with one image, and a folder with a file for each box in that image."""
    mode = "RGB" if request.param == "turned" else request.param
    pixels = np.random.default_rng(0).integers(0, 256, (100, 100, len(mode)), dtype=np.uint8)
    image = Image.fromarray(pixels.squeeze(), mode)
    for folder in ("whole", "single"):
        (tmp_path / folder).mkdir()
    for box in BOXES:
        image.crop(box.corners).save(tmp_path / "single" / f"{box.x:02d}.png")
    exif = Image.Exif()
    if request.param == "turned":
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = 6  # displayed rotated by 270 degrees
    image.save(tmp_path / "whole" / "a.png", exif=exif)
    return tmp_path / "whole", tmp_path / "single"


def frame(names, boxes=BOXES):
    rows = [(name, *box) for name in names for box in boxes]
    return pd.DataFrame(rows, columns=["path", "x", "y", "width", "height"])


def test_a_box_has_the_pixels_of_a_single_file(folders):
    """Bit for bit, scaled or not: the first box already has the requested size."""
    whole, single = folders
    items = read_collection(whole, boxes=BoxOptions(source=frame(["a.png"])))
    files = read_collection(single)
    expected = load_pixels(files, SIZE)[:]
    order = [files.names.index(f"{box.x:02d}.png") for box in sorted(BOXES, key=str)]
    names = [box_name("a.png", box) for box in sorted(BOXES, key=str)]
    assert sorted(names) == list(items.names)
    pixels = load_pixels(items, SIZE)
    for name, row in zip(names, order, strict=True):
        np.testing.assert_array_equal(pixels[pixels.names.index(name)], expected[row])
    for box in BOXES:
        crop = decode_whole(str(whole / box_name("a.png", box)), 1000)
        alone = decode_whole(str(single / f"{box.x:02d}.png"), 1000)
        assert crop.tobytes() == alone.tobytes()


def test_an_image_is_opened_once_for_all_of_its_boxes(tmp_path, monkeypatch):
    paths = []
    for name in ("a.png", "b.png"):
        Image.new("RGB", (100, 100)).save(tmp_path / name)
        paths += [str(tmp_path / box_name(name, box)) for box in BOXES]
    opened: list[str] = []
    plain_open = Image.open

    def counted(file, **options):
        opened.append(file)
        return plain_open(file, **options)

    monkeypatch.setattr(Image, "open", counted)
    (tmp_path / "rows").touch()
    job = DecodingJob(tmp_path / "rows", 0, SIZE)
    assert decode_rows(job, range(len(paths)), paths) == {}
    assert opened == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


def test_the_boxes_of_an_image_are_one_task():
    paths = ["a", "b#xywh=0,0,1,1", "b#xywh=0,0,2,2", "b#xywh=0,0,3,3", "c", "d", "e"]
    assert list(_tasks(paths, 2)) == [range(4), range(4, 6), range(6, 7)]


def test_a_box_outside_an_image_that_became_smaller_is_skipped(tmp_path):
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    items = read_collection(tmp_path, boxes=BoxOptions(source=frame(["a.png"])))
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    pixels = load_pixels(items, SIZE)
    assert pixels.names == (box_name("a.png", BOXES[0]),)
    assert len(pixels.skipped) == 2


def test_a_changed_image_is_decoded_again(tmp_path):
    file = tmp_path / "a.png"
    Image.new("RGB", (100, 100), "white").save(file)
    items = read_collection(tmp_path, boxes=BoxOptions(source=frame(["a.png"])))
    assert load_pixels(items, SIZE)[:].min() == 255
    Image.new("RGB", (100, 100), "black").save(file)
    os.utime(file, ns=(1, 1))
    assert load_pixels(items, SIZE)[:].max() == 0


def test_a_file_that_is_named_like_a_box_is_decoded_whole(tmp_path):
    Image.new("RGB", (9, 9), "white").save(tmp_path / "a.png")
    other = tmp_path / "a.png#xywh=0,0,3,3"
    Image.new("RGB", (9, 9), "black").save(other, "png")
    items = read_collection([tmp_path / "a.png", other])
    assert load_pixels(items, SIZE)[:].max(axis=(1, 2, 3)).tolist() == [255, 0]
    assert not any(decode_file(str(other), SIZE))
