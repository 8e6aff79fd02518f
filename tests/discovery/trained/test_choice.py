"""Held-out labels choose between the frozen and the trained result."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.trained import evaluation as evaluation_module
from shoal.discovery.trained.evaluation import (
    Choice,
    Evaluation,
    HeldOut,
    HeldOutAccuracy,
    is_significant,
)
from shoal.methods.method import Discovery, Representation
from shoal.methods.registry import get_method
from small_points import scattered

CLASSES = ("a", "b", "c", "d")
SETTINGS = choose_settings(changes={"inference.shift.n_neighbors": 4})


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
        job=SimpleNamespace(settings=settings),
        images=SimpleNamespace(
            frozen=Representation(embeddings=frozen, embed=lambda pixels: frozen),
            collection=SimpleNamespace(labels=labels, classes=CLASSES),
        ),
        held_out=held_out,
        frozen_discovery=first,
    )


def choose(frozen, trained, labels, held_out) -> Choice:
    return evaluation(frozen, labels, held_out).compare(trained, None)


def accuracy(is_correct: np.ndarray) -> HeldOutAccuracy:
    return HeldOutAccuracy(n_shifts=1, is_correct=is_correct)


def test_training_that_disperses_clusters_is_not_used(task) -> None:
    truth, labels, held_out = task
    tight = scattered(truth, 0.05)
    loose = scattered(truth, 3.0, seed=1)
    found = choose(tight, loose, labels, held_out)
    assert (found.frozen.share, found.hidden, found.result) == (1.0, ("d",), "frozen")
    better = choose(scattered(truth, 0.4, seed=2), tight, labels, held_out)
    assert better.trained.share > better.frozen.share


def test_a_method_with_custom_clustering_sees_all_labels_but_the_held_out_ones(
    task, monkeypatch
) -> None:
    truth, labels, held_out = task
    judging = np.flatnonzero((labels == 3) | ((labels >= 0) & (np.arange(120) % 10 == 0)))
    held_out = replace(held_out, rows=judging)
    points = scattered(truth, 0.05)
    seen = []

    def by_truth(learned, given, settings, n_clusters):
        seen.append((learned.embeddings.shape[1], given))
        return Discovery(clusters=truth, n_clusters=n_clusters, embeddings=points.numpy())

    method = replace(get_method("gcd"), cluster=by_truth)
    monkeypatch.setattr(evaluation_module, "get_method", lambda name: method)
    choice = evaluation(points, labels, held_out, choose_settings(method="gcd")).compare(
        points, None
    )
    assert choice.trained.is_correct.all()
    ((width, given),) = seen
    assert width == 12
    hidden = np.isin(np.arange(120), judging)
    np.testing.assert_array_equal(given, np.where(hidden, -1, labels))


def test_labels_seen_in_training_affect_the_reduction_of_variance_only(task) -> None:
    """Training fits the labels that it sees, so they cannot evaluate it."""
    truth, labels, held_out = task
    frozen = scattered(truth, 0.5)
    trained = scattered(truth, 0.4, seed=1)
    wrong = labels.copy()
    seen = np.flatnonzero((labels >= 0) & (labels < 3))
    wrong[seen] = np.random.default_rng(0).permutation(labels[seen])
    plain = choose_settings(
        must_link=False, changes={"inference.shift.n_neighbors": 4}
    )  # without the reduction
    before, after = (
        evaluation(frozen, given, held_out, plain).compare(trained, None).to_dict()
        for given in (labels, wrong)
    )
    assert before == after
    reduced, by_wrong = (choose(frozen, trained, given, held_out) for given in (labels, wrong))
    assert reduced.frozen.share > by_wrong.frozen.share


def test_collapsed_training_is_never_used(task) -> None:
    truth, labels, held_out = task
    one_direction = scattered(np.zeros(120, dtype=int), 1e-4)
    found = choose(scattered(truth, 0.05), one_direction, labels, held_out)
    assert (found.trained, found.result) == (None, "frozen")
    assert found.to_dict()["accuracy"]["trained"] is None


@pytest.mark.parametrize(("n_wrong", "is_hopeless"), [(4, False), (5, True)])
def test_significantly_worse_training_is_hopeless(n_wrong: int, is_hopeless: bool) -> None:
    """If 5 of 5 differing images are worse, 5 > 2 · √5."""
    frozen = accuracy(np.ones(100, dtype=bool))
    trained = accuracy(np.arange(100) >= n_wrong)
    assert Choice(hidden=(), frozen=frozen, trained=trained).is_hopeless == is_hopeless


@pytest.mark.parametrize(
    ("n_frozen", "n_trained", "kept"),
    [(7, 8, "frozen"), (8, 8, "frozen"), (9, 8, "frozen"), (4, 8, "frozen"), (3, 8, "trained")],
)
def test_the_frozen_result_is_used_unless_training_is_significantly_better(
    n_frozen, n_trained, kept
) -> None:
    """Five of five improvements have a p-value of 1/32, four of four of 1/16."""
    right = np.arange(10)
    found = Choice(
        hidden=("a",), frozen=accuracy(right < n_frozen), trained=accuracy(right < n_trained)
    )
    assert (found.result, found.is_significant) == (kept, kept == "trained")


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
        assert is_significant(np.ones(10, dtype=bool), frozen) == any(results)
