import numpy as np
import pytest
import torch

from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.data.collection import hold_out_validation
from shoal.reproduce import selection
from shoal.reproduce.selection import select_by_hidden_labels, with_hidden_classes
from shoal.training.validation import Validation, validate

PIXELS = np.zeros((6, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def merged():
    """Six points a a | b b | n n on a line, n next to b: at K = 2, b and n share a cluster."""
    points = torch.tensor([[0.0], [0.1], [5.0], [5.1], [6.0], [6.1]])
    truth = np.array([0, 0, 1, 1, 2, 2])
    return points, truth, truth < 2


def test_novel_labels_take_part_in_the_matching_and_known_images_are_counted(merged):
    """At K = 2 the cluster {b, b, n, n} has two images of each class. Matched to b, all known
    images are correct; matched to n, half of them.

    Only validation by hidden labels has this tie, and a third n decides it for n. Validation by
    given labels does not use n.
    """
    points, truth, is_known = merged
    given = np.where(is_known, truth, -1)
    assert validate(points, given, n_clusters=2).accuracy == 1
    more = torch.cat([points, torch.tensor([[6.2]])])
    validation_set = select_by_hidden_labels(
        PIXELS, np.append(truth, 2), np.append(is_known, False)
    )
    assert validation_set.score(more, None, 2) == Validation(accuracy=0.5, n_clusters=2)
    assert validation_set.score(more, None, 3) == Validation(accuracy=1.0, n_clusters=3)


def test_the_sweep_is_the_smallest_k_of_the_highest_accuracy_above_the_known_classes():
    rng = np.random.default_rng(0)
    truth = np.arange(40) % 5
    points = torch.from_numpy(truth[:, None] * 2.0 + rng.normal(size=(40, 2))).float()
    is_known = truth < 3
    validation_set = select_by_hidden_labels(PIXELS, truth, is_known)
    tree = Tree(selection.ward_linkage(points))
    accuracies = {k: gcd_accuracy(truth, tree.cut(k), is_known).known for k in range(4, 41)}
    best = max(accuracies.values())
    expected = min(k for k, accuracy in accuracies.items() if accuracy == best)
    assert validation_set.score(points, None, None) == Validation(
        accuracy=best, n_clusters=expected
    )


def test_images_set_aside_by_hidden_classes_are_a_tenth_of_each():
    truth = np.repeat([0, 1, 2], [40, 20, 60])
    labels = np.where((truth < 2) & (np.arange(120) % 2 == 0), truth, -1)
    rows = hold_out_validation(
        with_hidden_classes(labels, truth), share=0.1, rng=np.random.default_rng(0)
    )
    found = {(bool(is_labeled), label): 0 for is_labeled in (True, False) for label in range(3)}
    for row in rows:
        found[bool(labels[row] != -1), int(truth[row])] += 1
    assert found == {
        (True, 0): 2,
        (True, 1): 1,
        (True, 2): 0,
        (False, 0): 2,
        (False, 1): 1,
        (False, 2): 6,
    }
