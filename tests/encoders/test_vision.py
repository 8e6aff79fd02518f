import pytest
import torch
from torch import nn

from shoal.encoders.vision import CPU_CHUNK, Encoder, InputFormat, Parts
from shoal.errors import UsageError

HALF = (0.5, 0.5, 0.5)


def make_encoder():
    parts = Parts(
        stem=nn.Identity(), blocks=[], finish=nn.Identity(), is_finish_trained=False, feature_dim=3
    )
    return Encoder("e", parts, InputFormat(size=8, mean=HALF, std=(1, 1, 1)), 0)


@pytest.mark.parametrize("size", [0, 7, 4097])
def test_an_input_too_small_or_too_large_is_refused(size):
    with pytest.raises(UsageError):
        InputFormat(size=size, mean=(0, 0, 0), std=(1, 1, 1))


def test_a_cpu_runs_the_trunk_on_a_few_images_at_a_time(monkeypatch):
    """Feature maps of a whole batch would take gigabytes of memory."""
    monkeypatch.setenv("SHOAL_ENGINE", "torch")
    encoder = make_encoder()
    images = torch.rand(2 * CPU_CHUNK + 1, 3, 8, 8)
    sizes = []
    with torch.inference_mode():
        whole = encoder.trunk(images)
        encoder.trunk.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        torch.testing.assert_close(encoder.run_trunk(images), whole)
    assert sizes == [CPU_CHUNK, CPU_CHUNK, 1]
