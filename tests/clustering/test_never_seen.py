"""New images that are far from all images of a run belong to none of its categories."""

import numpy as np
import torch

from shoal.clustering.calibration import (
    _scores_from_others,
    fit_seen_probability,
    seen_probability,
)
from shoal.clustering.categories import other_neighbors, outlier_scores
from shoal.clustering.sums import unit_points


def groups(n_groups, n_each=25):
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(16)[:n_groups], n_each, axis=0) + 0.15 * rng.normal(
        size=(n_groups * n_each, 16)
    )
    return unit_points(rows), np.repeat(np.arange(n_groups), n_each)


def test_scores_without_the_own_category_are_those_of_a_loop():
    points, categories = groups(3)
    sample = np.arange(0, len(points), 7)
    expected = []
    for row in sample:
        others = points[torch.from_numpy(categories != categories[row])]
        nearest = (others @ points[row]).sort(descending=True).values[:5]
        expected.append(1 - float(nearest.mean()))
    assert np.allclose(_scores_from_others(points, categories, sample, 5), expected, atol=1e-6)


def test_images_of_the_run_are_likely_seen_and_those_of_a_category_left_out_are_not():
    points, categories = groups(5)
    is_left_out = categories == 4
    bank = points[torch.from_numpy(~is_left_out)]
    scores = outlier_scores(other_neighbors(bank, 8))
    seen = fit_seen_probability(bank, categories[~is_left_out], scores, 8)
    assert seen is not None
    strangers = points[torch.from_numpy(is_left_out)]
    far = 1 - (strangers @ bank.T).topk(8, dim=1).values.mean(dim=1).numpy()
    assert np.median(seen_probability(seen, scores)) > 0.9
    assert np.median(seen_probability(seen, far)) < 0.1


def test_one_category_says_nothing_of_others():
    points, categories = groups(1)
    assert fit_seen_probability(points, categories, np.zeros(len(points)), 4) is None
