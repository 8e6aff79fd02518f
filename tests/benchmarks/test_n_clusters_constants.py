"""The script behind the recorded errors on collections left out: what it chooses, and from what."""

import numpy as np
import pytest

from shoal.clustering import class_pairs, n_clusters


@pytest.fixture(scope="module")
def constants(load_script):
    return load_script("n_clusters_constants")


def test_each_collection_gets_the_configuration_that_is_best_on_the_others(constants) -> None:
    errors = np.array([[0.1, 0.3, 0.2], [0.1, 0.2, 0.3], [0.9, 0.1, 0.2]])[
        :, None
    ]  # (3 collections, 1, 3)
    # Others of the first: 1.0, 0.3, 0.5; of the second: 1.0, 0.4, 0.4, the earlier; of the third: 0.2, 0.5, 0.5.
    assert constants.chosen_on_others(errors).tolist() == [1, 1, 0]


def test_a_collection_has_no_say_in_its_own_configuration(constants) -> None:
    errors = np.random.default_rng(0).uniform(size=(4, 3, 9))
    chosen = constants.chosen_on_others(errors)
    changed = errors.copy()
    changed[2, :, chosen[2]] = 100
    found = constants.chosen_on_others(changed)
    assert found[2] == chosen[2]
    assert chosen[2] not in found[[0, 1, 3]]


def test_one_configuration_is_chosen_for_all_numbers_of_labels(constants) -> None:
    # (2 collections, 2 configurations) each
    half = [[0.1, 0.2], [0.1, 0.2]]
    two = [[0.5, 0.1], [0.5, 0.1]]
    assert constants.chosen_on_others(np.stack([half, two], axis=1)).tolist() == [1, 1]
    assert constants.chosen_on_others(np.array(half)[:, None]).tolist() == [0, 0]


def test_the_first_configuration_is_the_shipped_one_and_none_stays(constants) -> None:
    y = np.arange(400) % 20
    rows = np.eye(20)[y] + 0.25 * np.random.default_rng(0).normal(size=(400, 20))
    tree = constants.grow(rows, 0)
    labels = constants.draw(y, np.arange(12), 3, 0.5, np.random.default_rng(1))
    shipped = n_clusters.estimate_n_clusters(tree, labels)
    before = class_pairs.LAST, class_pairs.SIZES_TRUSTED, dict(n_clusters.SCALES)
    grid = {
        name: [shipped_value, *constants.OTHERS[name]]
        for name, shipped_value in constants.SHIPPED.items()
    }
    found = constants.answers(tree, labels, grid)
    assert found.shape == (3**4, 3)
    assert found[0].tolist() == [shipped.n_clusters, *shipped.interval]
    assert len(np.unique(found, axis=0)) > 1
    assert before == (class_pairs.LAST, class_pairs.SIZES_TRUSTED, n_clusters.SCALES)
