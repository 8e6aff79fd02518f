"""Verification: missing files, counts, and what to download."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.data.benchmarks import BENCHMARKS, load_split, verify


def write_cub(root: Path, n_train: int, n_test: int) -> None:
    """Write CUB's official tree with images spread over the 200 classes."""
    classes = load_split("cub").class_names
    rows: dict[str, list[object]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for i in range(n_train + n_test):
        rows["images"].append(f"{classes[i % 200]}/bird_{i}.jpg")
        rows["image_class_labels"].append(i % 200 + 1)
        rows["train_test_split"].append(int(i < n_train))
    folder = root / "CUB_200_2011"
    for name in rows["images"]:
        file = folder / "images" / str(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name, values in {**rows, "classes": list(classes)}.items():
        lines = [f"{i + 1} {value}\n" for i, value in enumerate(values)]
        (folder / f"{name}.txt").write_text("".join(lines))


@pytest.fixture
def cub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUB of two training images and one test image per class, with these published counts."""
    small = replace(BENCHMARKS["cub"], n_images=400, n_test=200, n_labeled=100, n_unlabeled=300)
    monkeypatch.setitem(BENCHMARKS, "cub", small)
    write_cub(tmp_path, 400, 200)
    return tmp_path


def test_counts_are_compared_with_the_published_ones(cub: Path) -> None:
    found = verify("cub", cub)
    assert found.is_complete
    assert [*found.parts[0].counts.values()] == [400, 200, 100, 300]


def test_what_to_download_is_listed(tmp_path: Path) -> None:
    found = verify("cub", tmp_path)
    assert not found.is_complete
    assert "CUB_200_2011.tgz" in found.describe()


def test_missing_files_are_listed_one_by_one(tmp_path: Path) -> None:
    write_cub(tmp_path, 400, 200)
    (tmp_path / "CUB_200_2011/images.txt").rename(tmp_path / "elsewhere.txt")
    found = verify("cub", tmp_path)
    assert found.parts[0].missing == ["images.txt"]
    (tmp_path / "elsewhere.txt").rename(tmp_path / "CUB_200_2011/images.txt")
    lost = next((tmp_path / "CUB_200_2011/images").rglob("bird_3.jpg"))
    lost.unlink()
    found = verify("cub", tmp_path)
    assert found.parts[0].missing == [f"images/{lost.parent.name}/bird_3.jpg"]
    assert found.parts[1].missing == []
    assert not found.is_complete
