import numpy as np
import pytest
import torch

from shoal.clustering.inference import InferenceSettings
from shoal.errors import DataError, UsageError
from shoal.methods.clusters import Representation, n_clusters_to_use
from shoal.methods.task import Task

PIXELS = np.zeros((4, 8, 8, 3), np.uint8)


def test_a_task_knows_which_images_are_labeled():
    assert Task(pixels=PIXELS, labels=np.array([0, -1, 1, -1])).is_labeled.tolist() == [True, False, True, False]


def test_without_labels_the_number_of_clusters_must_be_given():
    with pytest.raises(DataError, match="no image is labeled, so K cannot be estimated"):
        Task(pixels=PIXELS, labels=np.full(4, -1))
    assert Task(pixels=PIXELS, labels=np.full(4, -1), n_clusters=2).n_clusters == 2


@pytest.mark.parametrize("n_clusters", [0, 5])
def test_more_clusters_than_images_are_refused(n_clusters):
    with pytest.raises(UsageError, match=f"n_clusters: found {n_clusters}, expected 1 to 4"):
        Task(pixels=PIXELS, labels=np.zeros(4, int), n_clusters=n_clusters)


def test_pixels_and_labels_are_checked():
    with pytest.raises(DataError, match="pixels: found"):
        Task(pixels=PIXELS.astype(float), labels=np.zeros(4, int))
    with pytest.raises(DataError, match="labels: found shape"):
        Task(pixels=PIXELS, labels=np.zeros(3, int))


def test_the_number_from_validation_images_keeps_to_a_range():
    learned = Representation(embeddings=torch.ones(4, 2), embed=torch.as_tensor, n_clusters=3)
    labels = np.array([0, 1, -1, -1])
    ranges = (None, (1, 2), (4, 5), (2, 4))
    found = [
        n_clusters_to_use(None, learned, labels, "validation", InferenceSettings().with_range(numbers))
        for numbers in ranges
    ]
    assert found == [3, 2, 4, 3]
    assert n_clusters_to_use(2, learned, labels, "validation", InferenceSettings().with_range((4, 5))) == 2
