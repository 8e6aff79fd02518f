import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from shoal.clustering.estimators import WardClustering
from shoal.errors import UsageError


@parametrize_with_checks([WardClustering()])
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def test_labels_are_the_cut_of_the_tree():
    rows = np.array([[0.0], [5.0], [0.1], [5.1], [9.0]])
    model = WardClustering(n_clusters=3).fit(rows)
    assert model.labels_.tolist() == [0, 1, 0, 1, 2]
    assert model.tree_.cut(2).tolist() == [0, 1, 0, 1, 1]
    assert model.n_features_in_ == 1


@pytest.mark.parametrize("n_clusters", [4, 2.0, "2", True])
def test_an_impossible_number_of_clusters_is_refused(n_clusters):
    with pytest.raises(UsageError):
        WardClustering(n_clusters=n_clusters).fit(np.eye(3))
