"""Held-out labels choose the weight of the frozen embeddings."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.clustering.blend import WEIGHTS, TriedWeight
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.trained.evaluation import (
    Choice,
    Evaluation,
    can_be_significant,
    is_significant,
)
from shoal.discovery.trained.held_out import HeldOut
from shoal.methods.clusters import Discovery, Representation

CLASSES = ("a", "b", "c", "d")
SETTINGS = choose_settings(changes={"inference.shift.n_neighbors": 4})


def scattered(truth: np.ndarray, noise: float, seed: int = 0) -> torch.Tensor:
    """Return points around one axis per class: tight groups with little noise, a cloud with
    much."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


@pytest.fixture
def task():
    """120 images of six classes; half of the first four are labeled, and `d` is hidden from
    training."""
    truth = np.arange(120) % 6
    labels = np.where((truth < 4) & (np.arange(120) < 60), truth, -1)
    held_out_rows = np.flatnonzero(labels == 3)
    return (
        truth,
        labels,
        HeldOut(labels=np.where(labels == 3, -1, labels), hidden=(3,), rows=held_out_rows),
    )


def evaluation(frozen, labels, held_out, settings=SETTINGS) -> Evaluation:
    first = Discovery(clusters=labels, n_clusters=6, embeddings=frozen.numpy())
    return Evaluation(
        images=SimpleNamespace(
            frozen=Representation(embeddings=frozen, embed=lambda pixels: frozen),
            collection=SimpleNamespace(labels=labels, classes=CLASSES),
        ),
        held_out=held_out,
        frozen_discovery=first,
        settings=settings,
    )


def choose_weight_for(frozen, trained, labels, held_out) -> Choice:
    """Return the choice among all weights for frozen and trained embeddings."""
    return evaluation(frozen, labels, held_out).compare(trained, None, WEIGHTS[:-1])


def test_training_that_disperses_clusters_is_not_used(task) -> None:
    truth, labels, held_out = task
    tight = scattered(truth, 0.05)
    loose = scattered(truth, 3.0, seed=1)
    found = choose_weight_for(tight, loose, labels, held_out)
    assert (found.frozen.is_correct.all(), found.hidden, found.n_images) == (True, ("d",), 10)
    assert found.result == "frozen"
    better = choose_weight_for(loose, tight, labels, held_out)
    assert better.trained.is_correct.all()
    assert better.frozen.is_correct.mean() < 0.5
    assert better.result == "trained"
    assert better.chosen.weight < 1


def test_a_method_with_custom_clustering_sees_all_labels_but_the_held_out_ones(
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
    assert all(one.is_correct.all() for one in choice.tried)
    assert [width for width, _ in seen] == [6, 12]
    hidden = np.isin(np.arange(120), judging)
    np.testing.assert_array_equal(seen[0][1], np.where(hidden, -1, labels))


def test_labels_seen_in_training_affect_the_evaluation_of_the_frozen_embeddings_only(task) -> None:
    """Training fits the labels that it sees, so they cannot evaluate it."""
    truth, labels, held_out = task
    frozen = scattered(truth, 0.5)
    trained = scattered(truth, 0.4, seed=1)
    wrong = labels.copy()
    seen = np.flatnonzero((labels >= 0) & (labels < 3))
    wrong[seen] = np.random.default_rng(0).permutation(labels[seen])
    before, after = (
        choose_weight_for(frozen, trained, given, held_out).to_dict()["tried"]
        for given in (labels, wrong)
    )
    assert before[:-1] == after[:-1]
    assert before[-1]["accuracy"] > after[-1]["accuracy"]


def test_collapsed_training_is_never_used(task) -> None:
    truth, labels, held_out = task
    one_direction = scattered(np.zeros(120, dtype=int), 1e-4)
    found = choose_weight_for(scattered(truth, 0.05), one_direction, labels, held_out)
    assert (found.is_collapsed, found.result, found.trained.weight) == (True, "frozen", 1.0)


def test_significantly_worse_training_is_hopeless() -> None:
    frozen = np.ones(100, dtype=bool)
    for n_wrong, is_hopeless in (
        (4, False),
        (5, True),
    ):  # 5 of 5 differing images are worse: 5 > 2 · √5
        trial = TriedWeight(weight=0.65, n_shifts=0, is_correct=np.arange(100) >= n_wrong)
        found = Choice(
            hidden=(), tried=[trial, TriedWeight(weight=1.0, n_shifts=0, is_correct=frozen)]
        )
        assert found.is_hopeless == is_hopeless
    even = TriedWeight(weight=0.0, n_shifts=0, is_correct=frozen)
    assert not Choice(
        hidden=(), tried=[even, trial, TriedWeight(weight=1.0, n_shifts=0, is_correct=frozen)]
    ).is_hopeless


@pytest.mark.parametrize(
    ("n_frozen", "n_trained", "kept"),
    [(7, 8, "frozen"), (8, 8, "frozen"), (9, 8, "frozen"), (4, 8, "frozen"), (3, 8, "trained")],
)
def test_the_frozen_result_is_used_unless_training_is_significantly_better(
    n_frozen, n_trained, kept
) -> None:
    """Five of five improvements have a p-value of 1/32, four of four of 1/16."""
    right = np.arange(10)
    tried = [
        TriedWeight(weight=0.65, n_shifts=1, is_correct=right < n_trained),
        TriedWeight(weight=1.0, n_shifts=1, is_correct=right < n_frozen),
    ]
    found = Choice(hidden=("a",), tried=tried)
    assert (found.result, found.is_significant) == (kept, kept == "trained")
    assert found.chosen.weight == (0.65 if kept == "trained" else 1.0)


def test_with_fewer_than_five_errors_no_result_can_be_significant() -> None:
    """By enumeration of the images that a result could correct."""
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
