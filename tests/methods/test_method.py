import numpy as np
import torch

from shoal.clustering.inference import InferenceSettings
from shoal.methods.clusters import Representation, resolve_n_clusters


def test_the_number_from_validation_images_keeps_to_a_range():
    learned = Representation(embeddings=torch.ones(4, 2), embed=torch.as_tensor, n_clusters=3)
    labels = np.array([0, 1, -1, -1])
    for least, most, expected in ((None, None, 3), (1, 2, 2), (4, 5, 4), (2, 4, 3)):
        inference = InferenceSettings(min_clusters=least, max_clusters=most)
        found = resolve_n_clusters(None, learned, labels, inference)
        assert found == expected
    assert resolve_n_clusters(2, learned, labels, inference) == 2
