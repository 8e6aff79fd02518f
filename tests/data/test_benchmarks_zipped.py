"""Benchmarks read in place from a zip archive of class folders."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.data.benchmarks import load_split, read_benchmark
from shoal.data.benchmarks.benchmark import ORDER_IS_LOST, known_novel_split
from shoal.data.pixels.loading import load_pixels
from shoal.errors import DataError

CLASSES = load_split("cub").class_names or ()


def write_zip(file: Path, members: list[str]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for i, member in enumerate(members):
            buffer = io.BytesIO()
            Image.new("RGB", (4, 4), (i % 256, i // 256, 0)).save(buffer, "PNG")
            archive.writestr(member, buffer.getvalue())


def test_a_zip_is_read_in_place_in_the_order_of_its_members(tmp_path: Path) -> None:
    """CUB's archive keeps the official order, in which the names of a class are not sorted."""
    split = load_split("cub")
    classes = CLASSES
    members = [f"train/{c}/{c}_{i}.png" for c in classes for i in (2, 0, 1)]
    write_zip(tmp_path / "cub200-train.zip", members)
    found = read_benchmark("cub", tmp_path)
    ids = np.repeat(np.arange(200), 3)
    drawn = known_novel_split(ids, split.known, 0.5, seed=0)
    expected = dict(zip(members, drawn.tolist(), strict=True))
    assert (
        dict(zip(found.collection.names, found.collection.labels.tolist(), strict=True)) == expected
    )
    for i in (0, 1, 599):  # each image has the pixels of its name
        number = members.index(found.collection.names[i])
        assert found.collection.source(i).getpixel((0, 0)) == (number % 256, number // 256, 0)


def test_class_folders_have_lost_the_official_order(tmp_path: Path) -> None:
    for name in CLASSES:
        for i in range(3):
            file = tmp_path / "train" / name / f"{name}_{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    assert ORDER_IS_LOST in read_benchmark("cub", tmp_path).collection.notes


def test_threads_read_a_zip_together(tmp_path: Path) -> None:
    members = [f"train/{c}/{c}.png" for c in CLASSES]
    write_zip(tmp_path / "cub200-train.zip", members)
    collection = read_benchmark("cub", tmp_path).collection
    pixels = load_pixels(collection, size=4, cache=tmp_path / "cache", n_workers=8)
    assert not pixels.skipped
    assert pixels[:][:, 0, 0, 0].tolist() == [members.index(name) for name in collection.names]


def test_a_broken_zip_is_bad_data(tmp_path: Path) -> None:
    (tmp_path / "cub200-train.zip").write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"cub200-train\.zip"):
        read_benchmark("cub", tmp_path)
