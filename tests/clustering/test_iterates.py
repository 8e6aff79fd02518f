"""The steps of Algorithm 1, each by itself."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from shoal.clustering import iterates
from shoal.clustering.inference import infer
from shoal.clustering.neighbors import Neighbors, k_nearest


def draw() -> tuple[np.ndarray, np.ndarray]:
    """90 rows around six centers, and labels of every other row of the first four."""
    rng = np.random.default_rng(3)
    truth = np.arange(90) % 6
    rows = rng.normal(size=(6, 10))[truth] + 1.1 * rng.normal(size=(90, 10))
    return rows, np.where((truth < 4) & (np.arange(90) < 45), truth, -1)


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Neighbors]]:
    """The rows and the lists of each tree that is made."""
    given: list[tuple[Tensor, Neighbors]] = []

    def spy(points: Tensor, lists: Neighbors) -> np.ndarray:
        given.append((points, lists))
        return linkage(points.numpy(), "ward")

    monkeypatch.setattr(iterates, "link_rows", spy)
    return given


@pytest.mark.parametrize(("n_tabled", "n_listed"), [(0, 16), (10_000, 8)])
def test_ward_is_given_the_lists_that_the_shift_uses_and_longer_ones_where_it_reads_them(
    linked: list[tuple[Tensor, Neighbors]],
    n_tabled: int,
    n_listed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iterates, "FEW", {"cpu": n_tabled})
    rows, labels = draw()
    found = infer(rows, labels, 6)
    assert len(linked) == len(found.accuracies)
    for points, lists in linked:
        own = torch.arange(len(points))
        assert torch.equal(lists.indices, k_nearest(points, points, n_listed, exclude=own).indices)


def test_only_the_tree_that_is_cut_is_made_where_no_label_judges(
    linked: list[tuple[Tensor, Neighbors]],
) -> None:
    rows, labels = draw()
    found = infer(rows, labels, 6, n_shifts=3)
    ((points, _),) = linked
    assert found.n_shifts == 3
    assert torch.equal(points, found.embeddings)
