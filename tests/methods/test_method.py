import numpy as np
import torch

from shoal.clustering.inference import InferenceSettings
from shoal.methods.clusters import Representation, n_clusters_to_use


def test_the_number_from_validation_images_keeps_to_a_range():
    learned = Representation(embeddings=torch.ones(4, 2), embed=torch.as_tensor, n_clusters=3)
    labels = np.array([0, 1, -1, -1])
    for least, most, expected in ((None, None, 3), (1, 2, 2), (4, 5, 4), (2, 4, 3)):
        inference = InferenceSettings(min_clusters=least, max_clusters=most)
        found = n_clusters_to_use(None, learned, labels, "validation", inference)
        assert found == expected
    assert n_clusters_to_use(2, learned, labels, "validation", inference) == 2
