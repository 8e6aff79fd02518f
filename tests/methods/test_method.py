from dataclasses import replace

import numpy as np
import torch

from shoal.clustering.inference import InferenceSettings
from shoal.encoders.vision import HeadSettings
from shoal.methods.gcd import METHOD, Gcd, GcdSettings
from shoal.methods.method import Representation, resolve_n_clusters
from shoal.training.train_settings import TrainSettings

CPU = torch.device("cpu")


def test_the_number_from_validation_images_keeps_to_a_range():
    learned = Representation(embeddings=torch.ones(4, 2), embed=torch.as_tensor, n_clusters=3)
    labels = np.array([0, 1, -1, -1])
    for least, most, expected in ((None, None, 3), (1, 2, 2), (4, 5, 4), (2, 4, 3)):
        inference = InferenceSettings(min_clusters=least, max_clusters=most)
        found = resolve_n_clusters(None, learned, labels, inference)
        assert found == expected
    assert resolve_n_clusters(2, learned, labels, inference) == 2


def test_a_method_can_start_from_weights_of_another_and_act_before_every_step(task):
    """Only the model is written for it: the weights are loaded in its constructor, and a step calls
    `forward` first."""
    training = TrainSettings(epochs=2, batch_size=20, lr=0.01)
    settings = GcdSettings(training=training, head=HeadSettings(width=16, dim=8))
    first = METHOD.represent(task, settings, device=CPU)
    calls = []

    class Continued(Gcd):
        def __init__(self, encoder, settings, shape):
            super().__init__(encoder, settings, shape)
            self.load_tensors(first.model.saved_tensors())

        def begin_epoch(self, epoch):
            calls.append(epoch.embed())
            return {}

        def forward(self, inputs):
            calls.append("before a step")
            return super().forward(inputs)

    second = replace(METHOD, model=Continued).represent(task, settings, device=CPU)
    assert torch.equal(calls[0], first.embeddings)
    assert calls[1:6] == ["before a step"] * 5
    assert len(calls) == 2 * (1 + len(task.labels) // 20)
    assert not torch.equal(second.embeddings, first.embeddings)
