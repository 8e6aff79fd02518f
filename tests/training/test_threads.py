from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.methods.registry import get_method, load_recipe
from shoal.training.inputs import Task
from shoal.training.loop import train
from shoal.training.model import shape_of


def train_small(n_threads):
    """Train an epoch of the default recipe on 32 noisy images of 4 classes at 48 px; layers are
    large enough for several threads."""
    torch.set_num_threads(n_threads)  # restored by the fixture of this folder
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (4, 8, 8, 3))
    truth = np.arange(32) % 4
    pixels = kinds[truth].repeat(10, axis=1).repeat(10, axis=2) + rng.integers(
        -40, 41, (32, 80, 80, 3)
    )
    recipe = load_recipe()
    training = replace(
        recipe.training, epochs=1, batch_size=16, views=replace(recipe.training.views, pool=None)
    )
    settings = replace(recipe, input_size=48, training=training)
    data = Task(
        pixels=pixels.clip(0, 255).astype(np.uint8),
        labels=np.where(truth < 2, truth, -1),
        validation=np.arange(0, 32, 3),
    )
    model = get_method("cms").build(settings, shape_of(data))
    return train(data, model, settings.training).embeddings


@pytest.mark.slow
def test_bits_depend_only_on_the_number_of_threads():
    one, two, again = (train_small(n_threads) for n_threads in (1, 2, 2))
    assert torch.equal(two, again)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
