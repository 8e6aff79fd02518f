"""How much of the frozen encoder is kept, by labels that training never saw."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import WEIGHTS, TriedWeight
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.matching import drawn_units
from shoal.clustering.mean_shift import ShiftSettings
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.trial_judge import JudgingImages
from shoal.discovery.trained.withheld import Withheld

CLASSES = ("a", "b", "c", "d")
SETTINGS = InferenceSettings(shift=ShiftSettings(n_neighbors=4))


def scattered(truth: np.ndarray, noise: float, seed: int = 0) -> torch.Tensor:
    """Points around one axis per class: tight groups with little noise, a cloud with much."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


@pytest.fixture
def task():
    """120 images of six classes; half of the first four are labeled, and of these `d` is hidden from training."""
    truth = np.arange(120) % 6
    labels = np.where((truth < 4) & (np.arange(120) < 60), truth, -1)
    judged = np.flatnonzero(labels == 3)
    return (
        truth,
        labels,
        Withheld(labels=np.where(labels == 3, -1, labels), hidden=(3,), judged=judged),
    )


def judged(frozen, trained, labels, withheld, **how) -> Choice:
    """Frozen and trained embeddings, judged with every weight."""
    about = {
        "labels": labels,
        "classes": CLASSES,
        "withheld": withheld,
        "n_clusters": 6,
        "inference": SETTINGS,
    }
    images = JudgingImages(frozen=frozen, seed=0, **about)
    return images.compare(trained, images.judge_frozen(), WEIGHTS[:-1], **how)


def test_training_that_tears_groups_apart_is_not_kept(task) -> None:
    truth, labels, withheld = task
    tight = scattered(truth, 0.05)
    loose = scattered(truth, 3.0, seed=1)
    found = judged(tight, loose, labels, withheld)
    assert (found.frozen, found.hidden, found.n_images) == (1.0, ("d",), 10)
    better = judged(loose, tight, labels, withheld)
    assert (better.trained, better.keeps_training) == (1.0, True)
    assert better.frozen < 0.8
    assert better.chosen.weight < 1


def test_a_method_that_clusters_badly_loses_however_good_its_embeddings_are(task) -> None:
    """It is judged by its own clusters, which see all labels but those that judge, of validation images too."""
    truth, labels, withheld = task
    judging = np.flatnonzero((labels == 3) | ((labels >= 0) & (np.arange(120) % 10 == 0)))
    withheld = replace(withheld, judged=judging)
    points = scattered(truth, 0.05)
    seen = []

    def by_truth(embeddings, given):
        seen.append((embeddings.shape[1], given))
        return truth

    about = {
        "labels": labels,
        "classes": CLASSES,
        "withheld": withheld,
        "n_clusters": 6,
        "inference": SETTINGS,
    }
    for cluster, n_right in (
        (by_truth, len(judging)),
        (lambda embeddings, given: np.arange(120) % 7, 4),
    ):
        images = JudgingImages(frozen=points, seed=0, **about, own_clusters=cluster)
        found = images.compare(points, images.judge_frozen(), (0.0, 0.65))
        assert [(one.weight, one.n_shifts, int(one.right.sum())) for one in found.tried[:-1]] == [
            (0.0, 0, n_right),
            (0.65, 0, n_right),
        ]
        assert found.frozen == 1
        assert found.keeps_training is (n_right == len(judging))
    assert [width for width, _ in seen] == [6, 12]
    np.testing.assert_array_equal(
        seen[0][1], np.where(np.isin(np.arange(120), judging), -1, labels)
    )


def test_the_encoder_as_it_came_stands_where_everything_else_is_worse() -> None:
    right = np.ones(20, dtype=bool)
    wrong = np.zeros(20, dtype=bool)
    trials = [TriedWeight(weight=weight, n_shifts=1, right=wrong) for weight in (0.0, 0.65)]
    found = Choice(hidden=("a",), tried=[*trials, TriedWeight(weight=1.0, n_shifts=2, right=right)])
    assert (found.kept, found.frozen, found.trained) == ("frozen", 1.0, 0.0)
    assert found.to_dict()["frozen_weight"] == 1.0
    assert "the first answer stands" in found.in_words()


def test_the_labels_that_training_saw_do_not_judge(task) -> None:
    truth, labels, withheld = task
    frozen = scattered(truth, 0.5)
    trained = scattered(truth, 0.4, seed=1)
    wrong = labels.copy()
    seen = np.flatnonzero((labels >= 0) & (labels < 3))
    wrong[seen] = np.random.default_rng(0).permutation(labels[seen])
    before, after = (
        judged(frozen, trained, given, withheld).to_dict() for given in (labels, wrong)
    )
    assert before == after


def test_collapsed_training_does_not_stand_whatever_so_few_images_say(task) -> None:
    truth, labels, withheld = task
    points = scattered(truth, 0.05)
    found = judged(points, points, labels, withheld, is_collapsed=True)
    assert (found.kept, found.with_training.weight) == ("frozen", 1.0)
    assert "collapsed" in found.in_words()


def test_what_is_written_says_what_was_tried(task) -> None:
    truth, labels, withheld = task
    found = judged(scattered(truth, 0.3), scattered(truth, 0.3, 1), labels, withheld)
    said = found.to_dict()
    assert [one["weight"] for one in said["tried"]] == [0.0, 0.35, 0.65, 0.8, 1.0]
    assert said["tried"][-1]["accuracy"] == said["accuracy"]["frozen"]
    chosen = next(one for one in said["tried"] if one["weight"] == said["frozen_weight"])
    assert (chosen["n_shifts"], chosen["accuracy"]) == (
        said["n_shifts"],
        said["accuracy"]["trained"],
    )


def test_a_training_that_is_worse_by_two_errors_is_hopeless_and_one_that_is_near_is_not() -> None:
    frozen = np.ones(100, dtype=bool)
    for n_wrong, is_hopeless in (
        (4, False),
        (5, True),
    ):  # 5 of 5 images apart are worse: 5 > 2 · √5
        trial = TriedWeight(weight=0.65, n_shifts=0, right=np.arange(100) >= n_wrong)
        found = Choice(hidden=(), tried=[trial, TriedWeight(weight=1.0, n_shifts=0, right=frozen)])
        assert found.is_hopeless == is_hopeless
    even = TriedWeight(weight=0.0, n_shifts=0, right=frozen)
    assert not Choice(
        hidden=(), tried=[even, trial, TriedWeight(weight=1.0, n_shifts=0, right=frozen)]
    ).is_hopeless


def test_one_hidden_category_alone_makes_no_training_hopeless() -> None:
    """Its seven images go wrong together, so they are one draw of the eleven images' five."""
    right = np.arange(11) >= 7
    units = np.array([100] * 7 + [7, 8, 9, 10])
    trials = [
        TriedWeight(weight=0.65, n_shifts=0, right=right),
        TriedWeight(weight=1.0, n_shifts=0, right=np.ones(11, dtype=bool)),
    ]
    assert Choice(hidden=("a",), tried=trials).is_hopeless
    assert not Choice(hidden=("a",), tried=trials, units=units).is_hopeless


def test_a_training_that_was_stopped_must_put_more_right() -> None:
    right = np.arange(10)
    frozen = TriedWeight(weight=1.0, n_shifts=1, right=right < 8)
    for n_right, whole, stopped in (
        (7, "frozen", "frozen"),
        (8, "trained", "frozen"),
        (9, "trained", "trained"),
    ):
        found = Choice(
            hidden=(), tried=[TriedWeight(weight=0.65, n_shifts=1, right=right < n_right), frozen]
        )
        assert (found.kept, replace(found, is_stopped=True).kept) == (whole, stopped)
    even = Choice(hidden=(), tried=[replace(frozen, weight=0.65), frozen], is_stopped=True)
    assert even.in_words().endswith(
        "8 without training, 8 with it; no difference, the first answer stands"
    )


def test_one_image_more_of_ten_is_said_as_a_count_and_called_chance() -> None:
    """7 and 8 of 10; by two standard errors 6 more of 10 are needed to be sure, if nothing else differs."""
    right = np.arange(10)
    trials = [
        TriedWeight(weight=0.65, n_shifts=1, right=right < 8),
        TriedWeight(weight=1.0, n_shifts=1, right=right < 7),
    ]
    found = Choice(hidden=("a",), tried=trials)
    assert found.in_words() == (
        "of 10 labeled images kept from training, put right: 7 without training, 8 with it; that may be chance, the "
        "trained answer stands, with the encoder as it came weighing 65 %"
    )
    assert found.to_dict()["may_be_chance"]
    even = Choice(
        hidden=("a",), tried=[trials[0], TriedWeight(weight=1.0, n_shifts=1, right=right < 8)]
    )
    assert (
        "put right: 8 without training, 8 with it; no difference, the trained answer stands"
        in even.in_words()
    )
    sure = Choice(
        hidden=("a",), tried=[trials[0], TriedWeight(weight=1.0, n_shifts=1, right=right < 2)]
    )
    assert not sure.may_be_chance
    assert "put right: 2 without training, 8 with it; the trained answer stands" in sure.in_words()


def test_images_of_one_hidden_category_count_as_one_draw() -> None:
    """40 more of 80 are no chance if each is a draw; if they are the images of one category, there is one draw."""
    trials = [
        TriedWeight(weight=0.65, n_shifts=1, right=np.ones(80, dtype=bool)),
        TriedWeight(weight=1.0, n_shifts=1, right=np.arange(80) < 40),
    ]
    for n_categories, is_chance in (
        (1, True),
        (4, True),
        (5, False),
        (40, False),
    ):  # n > 2 · √n of equal categories
        units = np.where(np.arange(80) < 40, np.arange(80), 80 + np.arange(80) % n_categories)
        assert Choice(hidden=(), tried=trials, units=units).may_be_chance == is_chance
    assert not Choice(hidden=(), tried=trials).may_be_chance


def test_units_are_hidden_categories_and_single_images() -> None:
    rows = np.array([0, 3, 4, 7])
    labels = np.array([1, 2, 1, 2])
    assert drawn_units(rows, labels, (2,), 10).tolist() == [0, 12, 4, 12]
