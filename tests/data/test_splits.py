"""Validation is drawn from given labels only; benchmark splits are the published ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.splits import hold_out_validation, known_novel_split
from shoal.errors import DataError, UsageError


@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_every_image_is_on_one_side_and_every_class_on_both(
    labels: list[int], share: float, seed: int
) -> None:
    y = np.array(labels)
    split = hold_out_validation(y, share=share, rng=np.random.default_rng(seed))
    np.testing.assert_array_equal(
        np.sort(np.r_[split.training, split.validation]), np.arange(len(y))
    )
    sizes = {label: int((y == label).sum()) for label in set(labels) - {-1}}
    assert set(split.too_small) == {label for label, size in sizes.items() if size == 1}
    for label, size in sizes.items():
        on_both = {label in y[split.training], label in y[split.validation]} == {True}
        assert on_both == (size > 1)


def test_the_share_holds_per_class_and_for_the_unlabeled() -> None:
    y = np.repeat([0, 1, -1], [100, 10, 50])
    split = hold_out_validation(y, share=0.2, rng=np.random.default_rng(0))
    assert [int((y[split.validation] == label).sum()) for label in (0, 1, -1)] == [20, 2, 10]


def test_the_same_seed_gives_the_same_split() -> None:
    y = np.repeat([0, 1, -1], 20)
    first, again, other = (
        hold_out_validation(y, share=0.3, rng=np.random.default_rng(s)) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.validation, again.validation)
    assert not np.array_equal(first.validation, other.validation)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(UsageError):
        hold_out_validation([0, 1], share=share, rng=np.random.default_rng(0))


def test_known_images_are_labeled_by_one_global_draw() -> None:
    """The recipe of methods spelled out: seed numpy, choose int(share * n) of the known images,
    in dataset order."""
    truth = np.random.default_rng(3).integers(0, 6, 101)
    known = [4, 0, 2]
    labels = known_novel_split(truth, known, 0.5)
    pool = [i for i, label in enumerate(truth) if label in known]
    np.random.seed(0)  # noqa: NPY002
    n_chosen = int(0.5 * len(pool))
    chosen = np.random.choice(range(len(pool)), replace=False, size=(n_chosen,))  # noqa: NPY002
    expected = np.full(101, -1)
    for i in chosen:
        expected[pool[i]] = known.index(truth[pool[i]])
    np.testing.assert_array_equal(labels, expected)


def test_classes_may_be_names() -> None:
    truth = ["cat", "dog", "cat", "eel", "dog", "cat"]
    by_name = known_novel_split(truth, ["dog", "cat"], 0.5, seed=1)
    by_object = known_novel_split(np.array(truth, dtype=object), ["dog", "cat"], 0.5, seed=1)
    np.testing.assert_array_equal(by_name, by_object)
    assert (by_name >= 0).sum() == 2
    assert by_name[3] == -1


def test_a_known_class_that_does_not_occur_is_refused() -> None:
    with pytest.raises(DataError):
        known_novel_split([0, 1, 2], [0, 7])


@pytest.mark.data
def test_cub_has_the_published_counts(data_dir: Path) -> None:
    import zipfile

    names = sorted(
        n for n in zipfile.ZipFile(data_dir / "cub200-train.zip").namelist() if n.endswith(".webp")
    )
    classes = sorted({name.split("/")[1] for name in names})
    truth = [classes.index(name.split("/")[1]) for name in names]
    known = json.loads((data_dir / "splits" / "cub200.json").read_text())["known"]
    labels = known_novel_split(truth, known)
    assert ((labels >= 0).sum(), (labels < 0).sum()) == (1498, 4496)
