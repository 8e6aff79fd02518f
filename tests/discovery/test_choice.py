"""The better of two representations, by labels that training never saw."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.discovery.choice import Choice, compare
from shoal.discovery.settings import choose_settings
from shoal.discovery.validation import Withheld
from shoal.methods.method import Representation

CLASSES = ("a", "b", "c", "d")


def scattered(truth: np.ndarray, noise: float) -> Representation:
    """Points around one axis per class: tight groups with little noise, a cloud with much."""
    rng = np.random.default_rng(0)
    x = np.eye(6)[truth] + noise * rng.normal(size=(len(truth), 6))
    points = torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)
    return Representation(embeddings=points, embed=lambda pixels: points)


@pytest.fixture
def task():
    """120 images of six classes; half of the first four are labeled, and of these `d` is hidden from training."""
    truth = np.arange(120) % 6
    labels = np.where((truth < 4) & (np.arange(120) < 60), truth, -1)
    judged = np.flatnonzero(labels == 3)
    return truth, labels, Withheld(labels=np.where(labels == 3, -1, labels), hidden=(3,), judged=judged)


@pytest.mark.parametrize("method", ["cms", "gcd", "agglomerative"])
def test_tight_groups_win_over_a_cloud_whichever_was_trained(task, method: str) -> None:
    """GCD keeps the classes of labeled images, so the labels that judge must not reach the clustering either."""
    truth, labels, withheld = task
    tight, loose = scattered(truth, 0.05), scattered(truth, 0.8)
    settings = choose_settings(method=method, n_clusters=6)
    better = compare(loose, tight, labels, CLASSES, withheld, settings)
    worse = compare(tight, loose, labels, CLASSES, withheld, settings)
    assert (better.trained, better.keeps_training, better.hidden, better.n_images) == (1.0, True, ("d",), 10)
    assert (worse.frozen, worse.keeps_training) == (1.0, False)
    assert worse.trained < 0.8


def test_both_are_cut_at_a_number_estimated_in_the_same_way(task) -> None:
    """What validation images said of K comes from labels that judge, so it is not used: 60 would tear every group."""
    truth, labels, withheld = task
    tight = scattered(truth, 0.05)
    found = compare(tight, replace(tight, n_clusters=60), labels, CLASSES, withheld, choose_settings())
    assert (found.frozen, found.trained) == (1.0, 1.0)


def test_the_labels_that_judge_do_not_reach_the_clustering(task) -> None:
    """Scrambled, they change the shares and nothing else could change: the same clusters are judged."""
    truth, labels, withheld = task
    wrong = labels.copy()
    wrong[withheld.judged] = np.arange(10) % 3
    settings = choose_settings(n_clusters=6)
    found = compare(scattered(truth, 0.05), scattered(truth, 0.05), wrong, CLASSES, withheld, settings)
    assert found.frozen == found.trained == 0.4  # one cluster, matched to the most common of three classes


@pytest.mark.parametrize(
    ("only_frozen", "only_trained", "keeps"),
    [
        (0, 0, True),
        (4, 9, True),
        (1, 0, True),  # one image more is never more than one standard error, √1
        (2, 0, False),  # 2 > √2
        (3, 1, True),  # 2 = √4, within one standard error
        (6, 3, True),  # 3 = √9
        (7, 3, False),  # 4 > √10
    ],
)
def test_the_trained_answer_stands_unless_it_is_worse_by_more_than_one_standard_error(
    only_frozen: int, only_trained: int, keeps: bool
) -> None:
    found = Choice(hidden=("d",), n_images=40, both=20, only_frozen=only_frozen, only_trained=only_trained)
    assert found.keeps_training is keeps
    assert found.kept == ("trained" if keeps else "frozen")


def test_a_collapsed_training_does_not_stand_however_well_it_did_on_a_few_images() -> None:
    found = Choice(hidden=("d",), n_images=7, both=3, only_frozen=0, only_trained=2, is_collapsed=True)
    assert found.kept == "frozen"
    assert found.in_words().endswith("training has collapsed, the first answer stands")
    assert found.to_dict()["is_collapsed"]


def test_the_words_say_what_stands_and_on_how_many_images_that_rests() -> None:
    tie = Choice(hidden=("d",), n_images=1200, both=600, only_frozen=0, only_trained=0)
    assert tie.in_words() == (
        "of 1,200 labeled images kept from training, put right: 50.0 % without training, 50.0 % with it "
        "(0 and 0 by one of them alone); the trained answer stands"
    )
    near = Choice(hidden=("d",), n_images=12, both=3, only_frozen=3, only_trained=2)
    assert near.in_words().endswith(
        "(3 and 2 by one of them alone); so small a difference may be chance, the trained answer stands"
    )
    worse = Choice(hidden=("d",), n_images=12, both=3, only_frozen=3, only_trained=0)
    assert worse.in_words().endswith(
        "25.0 % with it (3 and 0 by one of them alone); training did not help, the first answer stands"
    )
    assert worse.to_dict() == {
        "kept": "frozen",
        "accuracy": {"frozen": 0.5, "trained": 0.25},
        "n_images": 12,
        "put_right": {"both": 3, "only_frozen": 3, "only_trained": 0},
        "hidden": ["d"],
        "is_collapsed": False,
    }
