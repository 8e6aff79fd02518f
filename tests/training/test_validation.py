import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.mean_shift import unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.training.validation import Validation, validate


@pytest.fixture
def groups():
    """Five tight groups of eight; every other image of the first three is labeled."""
    centers = 5 * torch.eye(5)
    noise = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    truth = np.arange(40) % 5
    labels = np.where((truth < 3) & (np.arange(40) % 10 < 5), truth, -1)
    return F.normalize(centers[truth] + 0.1 * noise, dim=1), labels, truth


@pytest.mark.parametrize(("rule", "possible"), [("pairs", (4, 5)), ("paper", (3,))])
def test_well_separated_groups_have_accuracy_one(groups, rule, possible):
    embeddings, labels, _ = groups
    found = validate(embeddings, labels, rule=rule)
    assert found.accuracy == 1
    expected = estimate_n_clusters(unit_tree(embeddings), labels, rule=rule)
    assert found.n_clusters == expected.n_clusters
    assert found.n_clusters in possible


def test_a_given_number_of_clusters_is_used(groups):
    embeddings, labels, _ = groups
    assert validate(embeddings, labels, n_clusters=5) == Validation(accuracy=1.0, n_clusters=5)
    too_few = validate(embeddings, labels, n_clusters=1)
    assert too_few.accuracy == pytest.approx(1 / 3)


def test_without_labels_the_accuracy_is_nan(groups):
    embeddings, labels, _ = groups
    found = validate(embeddings, np.full_like(labels, -1), n_clusters=4)
    assert np.isnan(found.accuracy)
    assert found.n_clusters == 4


def test_the_higher_accuracy_is_better_the_later_on_ties_or_without_labels():
    low, high, none = (Validation(accuracy=a, n_clusters=3) for a in (0.2, 0.5, float("nan")))
    assert high.is_better_than(low)
    assert not low.is_better_than(high)
    assert high.is_better_than(high), "the longer training"
    assert none.is_better_than(none)
