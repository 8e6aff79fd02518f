"""The published splits: which classes are known, and which of their images are labeled."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from shoal.data.benchmarks import get_facts, load_split

# The published counts: images, classes K, known classes, labeled and unlabeled images; the last two
# may be rounded.
PUBLISHED = {
    "cifar10": (50_000, 10, 5, "12,500", "37,500"),
    "cifar100": (50_000, 100, 80, "20,000", "30,000"),
    "imagenet100": (127_115, 100, 50, "31.9k", "95.3k"),
    "cub": (5_994, 200, 100, "1,498", "4,496"),
    "cars": (8_144, 196, 98, "2,024", "6,120"),
    "aircraft": (6_667, 100, 50, "1.7k", "5.0k"),
    "herbarium19": (34_225, 683, 341, "8.9k", "25.4k"),
}


def split_file(name: str) -> bytes:
    return (files("shoal.data.benchmarks") / "splits" / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_facts_are_the_published_counts(name: str) -> None:
    facts = get_facts(name)
    n_images, n_classes, n_known, labeled, unlabeled = PUBLISHED[name]
    assert (facts.n_images, facts.n_classes, facts.n_known) == (n_images, n_classes, n_known)
    for count, published in ((facts.n_labeled, labeled), (facts.n_unlabeled, unlabeled)):
        assert (f"{count / 1000:.1f}k" if published.endswith("k") else f"{count:,}") == published
    if labeled.endswith("k"):
        assert facts.labeled_within == 50
    else:
        assert facts.n_labeled + facts.n_unlabeled == n_images


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_class_is_either_known_or_novel_and_has_the_place_of_its_turn(name: str) -> None:
    split = load_split(name)
    assert sorted(split.known + split.novel) == list(range(split.n_classes))
    assert split.positions[list(split.known)].tolist() == list(range(len(split.known)))
    assert split.positions[list(split.novel)].tolist() == list(
        range(len(split.known), split.n_classes)
    )
    assert (split.labeled_share, split.seed) == (0.5, 0)


def test_no_split_was_changed() -> None:
    folder = files("shoal.data.benchmarks") / "splits"
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {file: checksum for checksum, file in map(str.split, lines)}
    assert sums == {f"{name}.json": load_split(name).sha256 for name in PUBLISHED}


def test_known_classes_keep_the_order_of_the_split_list_not_of_their_ids() -> None:
    """One published method sorts them, which makes its labels and checkpoints incompatible."""
    split = load_split("cub")
    assert split.known[:3] == (150, 70, 34)
    assert split.positions[150] == 0
    assert split.class_names is not None
    assert split.class_names[150] == "151.Black_capped_Vireo"


def test_the_imagenet_synsets_are_the_sorted_draw_of_100_in_1000() -> None:
    """Other papers use other ImageNet-100 lists; this one is reproducible from the seed."""
    entries = json.loads(split_file("imagenet100"))
    both = entries["known"] + entries["novel"]
    drawn = np.sort(np.random.RandomState(0).choice(1000, 100, replace=False))
    assert [entry["imagenet_id"] for entry in both] == drawn.tolist()
    assert [entry["id"] for entry in both] == list(range(100))
    synsets = [entry["name"] for entry in both]
    assert synsets == sorted(synsets)


def test_the_known_herbarium_classes_are_the_draw_of_341_in_683() -> None:
    drawn = np.random.RandomState(0).choice(683, 341, replace=False)
    assert load_split("herbarium19").known == tuple(drawn.tolist())


FACT_FILES = {
    "cub": "cub200.json",
    "cars": "stanford_cars.json",
    "aircraft": "fgvc_aircraft.json",
    "herbarium19": "herbarium_19.json",
}


@pytest.mark.data
@pytest.mark.parametrize("name", FACT_FILES)
def test_the_splits_agree_with_the_independent_copies_beside_the_images(
    name: str, data_dir: Path
) -> None:
    facts = json.loads((data_dir / "splits" / FACT_FILES[name]).read_text(encoding="utf-8"))
    novel = (
        facts["novel"]
        if isinstance(facts["novel"], list)
        else [i for part in facts["novel"].values() for i in part]
    )
    split = load_split(name)
    assert (list(split.known), list(split.novel)) == (facts["known"], novel)
