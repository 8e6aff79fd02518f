"""How much of the frozen encoder is kept, by labels that training never saw."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import WEIGHTS, TriedWeight
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.trained.choice import Choice, can_be_significant, is_significant
from shoal.discovery.trained.evaluation import Evaluation
from shoal.discovery.trained.held_out import HeldOut
from shoal.methods.clusters import Discovery, Representation

CLASSES = ("a", "b", "c", "d")
SETTINGS = choose_settings(changes={"inference.shift.n_neighbors": 4})


def scattered(truth: np.ndarray, noise: float, seed: int = 0) -> torch.Tensor:
    """Points around one axis per class: tight groups with little noise, a cloud with much."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


@pytest.fixture
def task():
    """120 images of six classes; half of the first four are labeled, and of these `d` is hidden
    from training."""
    truth = np.arange(120) % 6
    labels = np.where((truth < 4) & (np.arange(120) < 60), truth, -1)
    judged = np.flatnonzero(labels == 3)
    return (
        truth,
        labels,
        HeldOut(labels=np.where(labels == 3, -1, labels), hidden=(3,), rows=judged),
    )


def evaluation(frozen, labels, held_out, settings=SETTINGS) -> Evaluation:
    first = Discovery(clusters=labels, n_clusters=6, embeddings=frozen.numpy())
    return Evaluation(
        frozen=Representation(embeddings=frozen, embed=lambda pixels: frozen),
        labels=labels,
        classes=CLASSES,
        held_out=held_out,
        first=first,
        settings=settings,
    )


def judged(frozen, trained, labels, held_out) -> Choice:
    """Frozen and trained embeddings, judged with every weight."""
    return evaluation(frozen, labels, held_out).compare(trained, None, WEIGHTS[:-1])


def test_training_that_tears_groups_apart_is_not_kept(task) -> None:
    truth, labels, held_out = task
    tight = scattered(truth, 0.05)
    loose = scattered(truth, 3.0, seed=1)
    found = judged(tight, loose, labels, held_out)
    assert (found.frozen.right.all(), found.hidden, found.n_images) == (True, ("d",), 10)
    assert found.kept == "frozen"
    better = judged(loose, tight, labels, held_out)
    assert better.trained.right.all()
    assert better.frozen.right.mean() < 0.5
    assert better.kept == "trained"
    assert better.chosen.weight < 1


def test_a_method_that_clusters_its_own_way_sees_all_labels_but_those_that_judge(
    task, monkeypatch
) -> None:
    truth, labels, held_out = task
    judging = np.flatnonzero((labels == 3) | ((labels >= 0) & (np.arange(120) % 10 == 0)))
    held_out = replace(held_out, rows=judging)
    points = scattered(truth, 0.05)
    seen = []

    def by_truth(_evaluation, embeddings, given):
        seen.append((embeddings.shape[1], given))
        return truth

    monkeypatch.setattr(Evaluation, "_cluster", by_truth)
    found = evaluation(points, labels, held_out, choose_settings(method="gcd"))
    choice = found.compare(points, None, (0.0, 0.65))
    assert [(one.weight, one.n_shifts) for one in choice.tried[:-1]] == [(0.0, 0), (0.65, 0)]
    assert all(one.right.all() for one in choice.tried)
    assert [width for width, _ in seen] == [6, 12]
    hidden = np.isin(np.arange(120), judging)
    np.testing.assert_array_equal(seen[0][1], np.where(hidden, -1, labels))


def test_the_labels_that_training_saw_do_not_judge(task) -> None:
    truth, labels, held_out = task
    frozen = scattered(truth, 0.5)
    trained = scattered(truth, 0.4, seed=1)
    wrong = labels.copy()
    seen = np.flatnonzero((labels >= 0) & (labels < 3))
    wrong[seen] = np.random.default_rng(0).permutation(labels[seen])
    before, after = (
        judged(frozen, trained, given, held_out).to_dict() for given in (labels, wrong)
    )
    assert before == after


def test_collapsed_training_does_not_stand_whatever_so_few_images_say(task) -> None:
    truth, labels, held_out = task
    one_direction = scattered(np.zeros(120, dtype=int), 1e-4)
    found = judged(scattered(truth, 0.05), one_direction, labels, held_out)
    assert (found.is_collapsed, found.kept, found.trained.weight) == (True, "frozen", 1.0)


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


@pytest.mark.parametrize(
    ("n_frozen", "n_trained", "kept"),
    [(7, 8, "frozen"), (8, 8, "frozen"), (9, 8, "frozen"), (4, 8, "frozen"), (3, 8, "trained")],
)
def test_the_frozen_result_is_kept_unless_training_is_significantly_better(
    n_frozen, n_trained, kept
) -> None:
    """Five of five changes for the better have a chance of 1/32, four of four of 1/16."""
    right = np.arange(10)
    tried = [
        TriedWeight(weight=0.65, n_shifts=1, right=right < n_trained),
        TriedWeight(weight=1.0, n_shifts=1, right=right < n_frozen),
    ]
    found = Choice(hidden=("a",), tried=tried)
    assert (found.kept, found.is_significant) == (kept, kept == "trained")
    assert found.chosen.weight == (0.65 if kept == "trained" else 1.0)


def test_no_result_can_be_significant_where_fewer_than_five_images_are_wrong() -> None:
    """By trying every result: which of the wrong images could become right."""
    for wrong in (
        [],
        [0],
        [0, 1, 2, 3],
        [6, 7, 8],
        [0, 1, 2, 6, 7, 8],
        [0, 1, 2, 3, 7],
        [5, *range(5)],
    ):
        frozen = np.ones(10, dtype=bool)
        frozen[wrong] = False
        results = []
        for repaired in range(2 ** len(wrong)):
            result = frozen.copy()
            result[[row for at, row in enumerate(wrong) if repaired >> at & 1]] = True
            results.append(is_significant(result, frozen))
        assert can_be_significant(frozen) == any(results)
