"""The inductive protocol without its leak, and the real archives."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.data.benchmarks import Benchmark, get_facts, inductive_split, load_split, read_benchmark, verify
from shoal.data.benchmarks.zipped import ZipImages
from shoal.data.collection import Collection, Truth
from shoal.data.splits import known_novel_split


def made_up(seed: int = 0) -> Benchmark:
    """4,000 images of CIFAR-10's classes, in memory."""
    split = load_split("cifar10")
    true_labels = np.random.default_rng(seed).integers(0, 10, 4_000)
    names = tuple(f"train-{i:05d}" for i in range(len(true_labels)))
    assert split.class_names is not None
    collection = Collection(
        names,
        known_novel_split(true_labels, range(5), 0.5),
        split.class_names[:5],
        images=np.zeros((len(names), 1, 1, 3), dtype=np.uint8),
    )
    truth = Truth(names, true_labels, split.class_names, 5)
    return Benchmark("cifar10", "train", collection, truth, get_facts("cifar10"), split, 0)


def test_validation_and_training_are_every_image_once_with_its_own_label() -> None:
    whole = made_up()
    cut = inductive_split(whole)
    labels = dict(zip(whole.collection.names, whole.collection.labels.tolist(), strict=True))
    truth = dict(zip(whole.truth.names, whole.truth.labels.tolist(), strict=True))
    names = cut.training.collection.names + cut.validation.collection.names
    assert sorted(names) == list(whole.collection.names)
    for part in (cut.training, cut.validation):
        assert part.truth.names == part.collection.names
        assert part.collection.labels.tolist() == [labels[name] for name in part.collection.names]
        assert part.truth.labels.tolist() == [truth[name] for name in part.truth.names]


def test_validation_is_a_tenth_of_each_labeled_class_and_of_the_unlabeled_images() -> None:
    whole = made_up()
    validation = inductive_split(whole).validation.collection
    assert validation.class_sizes.tolist() == [round(0.1 * size) for size in whole.collection.class_sizes]
    n_unlabeled = len(whole.collection) - whole.collection.n_labeled
    assert len(validation) - validation.n_labeled == round(0.1 * n_unlabeled)


def test_validation_does_not_know_the_hidden_classes() -> None:
    """Scrambling the truth of unlabeled images moves no image from one side to the other."""
    whole = made_up()
    scrambled = whole.truth.labels.copy()
    hidden = np.flatnonzero(~whole.collection.is_labeled)
    scrambled[hidden] = np.random.default_rng(5).permutation(scrambled[hidden])
    other = replace(whole, truth=replace(whole.truth, labels=scrambled))
    assert inductive_split(other).validation.collection.names == inductive_split(whole).validation.collection.names


def test_unlabeled_validation_images_are_not_stratified_by_true_class() -> None:
    """A draw by hidden class would take the same share of each; a random one does not."""
    whole = made_up()
    validation = inductive_split(whole).validation
    hidden = validation.truth.labels[~validation.collection.is_labeled]
    all_hidden = whole.truth.labels[~whole.collection.is_labeled]
    by_class = [round(0.1 * size) for size in np.bincount(all_hidden, minlength=10)]
    assert np.bincount(hidden, minlength=10).tolist() != by_class


def test_the_seed_decides_the_validation_images() -> None:
    whole = made_up()
    first, again, other = (inductive_split(whole, seed=seed).validation.collection.names for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "n_labeled", "n_known_unlabeled", "n_novel", "n_test"),
    [("cub", 1_498, 1_499, 2_997, 5_794), ("cifar100", 20_000, 20_000, 10_000, 10_000)],
)
def test_the_real_archives_have_the_published_counts(
    name: str, n_labeled: int, n_known_unlabeled: int, n_novel: int, n_test: int, data_dir: Path
) -> None:
    found = read_benchmark(name, data_dir)
    is_labeled, is_known = found.collection.is_labeled, found.truth.is_known
    assert int(is_labeled.sum()) == n_labeled
    assert int((is_known & ~is_labeled).sum()) == n_known_unlabeled
    assert int((~is_known).sum()) == n_novel
    assert len(read_benchmark(name, data_dir, part="test").collection) == n_test
    assert verify(name, data_dir).is_complete


@pytest.mark.data
@pytest.mark.parametrize("name", ["cub", "cifar100"])
def test_real_images_are_read_in_place_and_stay_closed_until_asked_for(name: str, data_dir: Path) -> None:
    whole = read_benchmark(name, data_dir)
    validation = inductive_split(whole).validation.collection
    assert isinstance(validation.images, ZipImages)
    for i in (0, len(validation) // 2, len(validation) - 1):
        image = validation.source(i).convert("RGB")
        assert min(image.size) == (224 if name == "cub" else 32)


@pytest.mark.data
def test_the_labeled_cub_images_are_drawn_in_the_order_of_the_archive(data_dir: Path) -> None:
    """Not in the order of the names: images.txt begins with …_0046_18 (test), …_0009_34, …_0002_55 (test), …_0074_59,
    …_0014_89, and so do the archives. The draw is repeated here step by step from the facts beside the images.
    """
    with zipfile.ZipFile(data_dir / "cub200-train.zip") as archive:
        members = archive.namelist()
    assert [Path(member).stem[-7:] for member in members[:3]] == ["0009_34", "0074_59", "0014_89"]
    known = json.loads((data_dir / "splits" / "cub200.json").read_text(encoding="utf-8"))["known"]
    of_known = [member for member in members if int(member.split("/")[1][:3]) - 1 in known]
    drawn = np.random.RandomState(0).choice(len(of_known), int(0.5 * len(of_known)), replace=False)
    collection = read_benchmark("cub", data_dir).collection
    labeled = {name for name, yes in zip(collection.names, collection.is_labeled, strict=True) if yes}
    assert labeled == {of_known[i] for i in drawn}
