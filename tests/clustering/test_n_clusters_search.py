import numpy as np
import pytest

from shoal.clustering.n_clusters_search import search_n_clusters
from shoal.errors import DataError, UsageError

TRUTH = np.repeat(np.arange(40), 10)
LABELS = np.where((TRUTH < 20) & (np.arange(400) % 2 == 0), TRUTH, -1)


def best_at_40(n_clusters):
    """The classes, but the farther K is from 40, the more of the images are in one wrong
    cluster."""
    return np.where(np.arange(400) % 101 < 1.5 * abs(n_clusters - 40), 99, TRUTH)


def test_the_number_of_the_highest_labeled_accuracy_is_found_in_few_tries():
    tried = []

    def cluster(n_clusters):
        tried.append(n_clusters)
        return best_at_40(n_clusters)

    assert search_n_clusters(cluster, LABELS, most=100) == 40
    assert len(tried) == len(set(tried)) < 20
    assert min(tried) >= 20
    assert max(tried) <= 100


def test_hidden_labels_have_no_way_in_and_the_smallest_of_equals_is_taken():
    assert search_n_clusters(lambda n_clusters: TRUTH, LABELS, most=60) == min(tries(60))


def tries(most):
    seen = []
    search_n_clusters(lambda n_clusters: seen.append(n_clusters) or TRUTH, LABELS, most=most)
    return seen


def test_a_range_is_kept_to():
    assert 50 <= search_n_clusters(best_at_40, LABELS, least=50, most=70) <= 55
    assert search_n_clusters(best_at_40, LABELS, least=33, most=33) == 33
    assert search_n_clusters(best_at_40, LABELS, least=3, most=22) >= 20


def test_there_are_no_more_clusters_than_known_classes_and_unlabeled_images():
    """Of 400 images all but five are labeled, in 40 classes; the more clusters, the better they
    agree."""
    labels = np.where(np.arange(400) < 395, TRUTH, -1)
    tried = []

    def cluster(n_clusters):
        tried.append(n_clusters)
        return np.where(np.arange(400) < 8 * n_clusters, TRUTH, 99)

    assert 40 < search_n_clusters(cluster, labels) <= 45
    assert max(tried) <= 45
    assert search_n_clusters(cluster, TRUTH) == 40


def test_where_nothing_says_how_many_it_is_refused():
    with pytest.raises(UsageError):
        search_n_clusters(best_at_40, np.full(400, -1))
    with pytest.raises(DataError):
        search_n_clusters(best_at_40, np.where(LABELS == 3, 3, -1))
    with pytest.raises(UsageError):
        search_n_clusters(best_at_40, LABELS, most=12)
