import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import shoal
from shoal.clustering.estimators import WardClustering
from shoal.errors import UsageError


@parametrize_with_checks([WardClustering()])
def test_it_is_a_scikit_learn_estimator(estimator: WardClustering, check: object) -> None:
    check(estimator)


def test_labels_are_the_cut_of_the_tree() -> None:
    rows = np.array([[0.0], [5.0], [0.1], [5.1], [9.0]])
    model = WardClustering(n_clusters=3).fit(rows)
    assert model.labels_.tolist() == [0, 1, 0, 1, 2]
    assert model.tree_.cut(2).tolist() == [0, 1, 0, 1, 1]
    assert model.children_.shape == (4, 2)
    assert model.distances_.shape == (4,)
    assert (model.n_leaves_, model.n_features_in_) == (5, 1)


def test_more_clusters_than_rows_is_refused() -> None:
    with pytest.raises(UsageError):
        WardClustering(n_clusters=4).fit(np.eye(3))


@pytest.mark.parametrize(
    "given", [{"n_clusters": 2.0}, {"n_clusters": "2"}, {"n_clusters": True}, {"memory": "1G"}]
)
def test_a_parameter_of_a_wrong_type_is_refused_by_name(given: dict) -> None:
    with pytest.raises(UsageError):
        WardClustering(**given).fit(np.eye(3))


def test_the_public_name_is_this_class() -> None:
    assert shoal.WardClustering is WardClustering
