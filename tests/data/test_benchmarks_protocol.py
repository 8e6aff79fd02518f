"""The benchmarks read from their real archives."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shoal.data.benchmarks import read_benchmark, verify
from shoal.data.benchmarks.benchmark import ZipImages


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "n_labeled", "n_known_unlabeled", "n_novel", "n_test"),
    [("cub", 1_498, 1_499, 2_997, 5_794), ("cifar100", 20_000, 20_000, 10_000, 10_000)],
)
def test_the_real_archives_have_the_published_counts(
    name: str, n_labeled: int, n_known_unlabeled: int, n_novel: int, n_test: int, data_dir: Path
) -> None:
    found = read_benchmark(name, data_dir)
    is_labeled = found.collection.is_labeled
    is_known = found.is_known
    assert int(is_labeled.sum()) == n_labeled
    assert int((is_known & ~is_labeled).sum()) == n_known_unlabeled
    assert int((~is_known).sum()) == n_novel
    assert len(read_benchmark(name, data_dir, part="test").collection) == n_test
    assert verify(name, data_dir).is_complete


@pytest.mark.data
@pytest.mark.parametrize("name", ["cub", "cifar100"])
def test_real_images_are_read_in_place_and_stay_closed_until_asked_for(
    name: str, data_dir: Path
) -> None:
    whole = read_benchmark(name, data_dir)
    assert isinstance(whole.collection.images, ZipImages)
    for i in (0, len(whole.collection) // 2, len(whole.collection) - 1):
        image = whole.collection.source(i).convert("RGB")
        assert min(image.size) == (224 if name == "cub" else 32)


@pytest.mark.data
def test_the_labeled_cub_images_are_drawn_in_the_order_of_the_archive(data_dir: Path) -> None:
    """Archives and images.txt are not sorted by name, but begin with …_0046_18 (test), …_0009_34,
    …_0002_55 (test), …_0074_59, …_0014_89. The labeled images are sampled again here, step by step,
    from the names in the archive and the known classes."""
    with zipfile.ZipFile(data_dir / "cub200-train.zip") as archive:
        members = archive.namelist()
    assert [Path(member).stem[-7:] for member in members[:3]] == ["0009_34", "0074_59", "0014_89"]
    known = json.loads((data_dir / "splits" / "cub200.json").read_text(encoding="utf-8"))["known"]
    of_known = [member for member in members if int(member.split("/")[1][:3]) - 1 in known]
    drawn = np.random.RandomState(0).choice(len(of_known), int(0.5 * len(of_known)), replace=False)
    collection = read_benchmark("cub", data_dir).collection
    labeled = {
        name for name, yes in zip(collection.names, collection.is_labeled, strict=True) if yes
    }
    assert labeled == {of_known[i] for i in drawn}
