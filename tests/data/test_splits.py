"""Validation images are sampled from given labels only; benchmark splits are the published ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.benchmarks.benchmark import known_novel_split
from shoal.data.collection import hold_out_validation


@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_every_image_is_on_one_side_and_every_class_on_both(
    labels: list[int], share: float, seed: int
) -> None:
    y = np.array(labels)
    validation = hold_out_validation(y, share=share, rng=np.random.default_rng(seed))
    training = np.setdiff1d(np.arange(len(y)), validation)
    assert len(training) + len(validation) == len(y)
    sizes = {label: int((y == label).sum()) for label in set(labels) - {-1}}
    for label, size in sizes.items():
        on_both = {label in y[training], label in y[validation]} == {True}
        assert on_both == (size > 1)


def test_known_images_are_labeled_by_one_global_draw() -> None:
    """As in the published methods: seed numpy, then sample int(share * n) of the known images in
    dataset order."""
    truth = np.random.default_rng(3).integers(0, 6, 101)
    known = [4, 0, 2]
    labels = known_novel_split(truth, known, 0.5, seed=0)
    pool = [i for i, label in enumerate(truth) if label in known]
    np.random.seed(0)  # noqa: NPY002
    n_chosen = int(0.5 * len(pool))
    chosen = np.random.choice(range(len(pool)), replace=False, size=(n_chosen,))  # noqa: NPY002
    expected = np.full(101, -1)
    for i in chosen:
        expected[pool[i]] = known.index(truth[pool[i]])
    np.testing.assert_array_equal(labels, expected)
