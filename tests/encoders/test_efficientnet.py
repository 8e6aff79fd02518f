import copy

import pytest
import torch
from torch import nn

from shoal.encoders import catalog
from shoal.encoders.catalog import ENCODERS, load_encoder
from shoal.encoders.efficientnet import split_efficientnet
from shoal.encoders.vision import Encoder, InputFormat

FORMAT = InputFormat(size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@pytest.fixture
def images():
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def efficientnet():
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    network = EfficientNet.from_name("efficientnet-lite0", image_size=None)
    for module in (
        network.modules()
    ):  # statistics that differ from 0 and 1, so that the mode of the norms matters
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


@pytest.mark.parametrize("n_tail_blocks", [0, 1, 5, 16])
def test_trunk_and_tail_are_the_efficientnets_own_forward(efficientnet, images, n_tail_blocks):
    encoder = Encoder("e", split_efficientnet(efficientnet), FORMAT, n_tail_blocks)
    with torch.no_grad():
        own = efficientnet.extract_features(images).mean(dim=(2, 3))
        assert (encoder(images) - own).abs().max() < 1e-6 * own.abs().max()


@pytest.fixture(scope="module")
def shipped():
    """The network of the default encoder as its package builds it, with its weights."""
    return catalog._build_efficientnet("efficientnet-lite2", ENCODERS["efficientnet-lite2"]).eval()


def pictures(size):
    """Eight smooth pictures with a little noise, in [-1, 1]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(8, 3, 12, 12, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=size, mode="bicubic")
    return (smooth + 0.05 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1) * 2 - 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128, 224])
def test_the_default_encoder_is_as_close_to_float64_as_its_networks_own_forward(shipped, size):
    """docs/encoders.md gives the figures. Folding rounds elsewhere than the network does, not more.

    The network's own forward in float32 is that of both layouts of memory: they differ by as much.
    """
    images = pictures(size)
    encoder = load_encoder("efficientnet-lite2")
    with torch.no_grad():
        exact = copy.deepcopy(shipped).double().extract_features(images.double()).mean(dim=(2, 3))
        last = copy.deepcopy(shipped).to(memory_format=torch.channels_last)
        alike = images.contiguous(memory_format=torch.channels_last)
        owns = [
            net.extract_features(x).mean(dim=(2, 3))
            for net, x in ((shipped, images), (last, alike))
        ]
        found = encoder(images)
    largest = exact.abs().max()
    own_error = max(float((own - exact).abs().max() / largest) for own in owns)
    assert (found - exact).abs().max() / largest < 2 * own_error
    assert (found - owns[0]).abs().max() / largest < 5e-6


def test_gradients_of_the_tail_are_those_of_the_whole_efficientnet(efficientnet, images):
    efficientnet.requires_grad_(True)
    efficientnet.zero_grad(set_to_none=True)
    efficientnet.extract_features(images).mean(dim=(2, 3)).pow(2).sum().backward()
    expected = {
        name: value.grad.clone()
        for name, value in efficientnet.named_parameters()
        if value.grad is not None
    }
    efficientnet.zero_grad(set_to_none=True)
    encoder = Encoder("e", split_efficientnet(efficientnet), FORMAT, 2)
    with torch.inference_mode():
        tokens = encoder.trunk(images)
    encoder.tail(tokens.clone()).pow(2).sum().backward()
    trained = {
        name: value.grad
        for name, value in efficientnet.named_parameters()
        if value.grad is not None
    }
    assert "_conv_head.weight" in trained
    assert len(trained) == sum(value.requires_grad for value in encoder.parameters())
    for name, grad in trained.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


def test_batch_norm_statistics_stay_frozen_in_training(efficientnet, images):
    encoder = Encoder("e", split_efficientnet(efficientnet), FORMAT, 3)
    before = {name: value.clone() for name, value in encoder.named_buffers()}
    encoder.train()
    encoder(images).sum().backward()
    assert not encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.named_buffers())


def test_frozen_weights_follow_the_precision_in_use_and_go_back(efficientnet, images):
    """Converted to bfloat16 once, in inference mode; then full precision again, to the bit, and
    bfloat16 outside."""
    encoder = Encoder("e", split_efficientnet(efficientnet), FORMAT, 2)
    with torch.no_grad():
        full = encoder.trunk(images)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        low = encoder.trunk(images)
    assert low.dtype == torch.bfloat16
    assert (low.float() - full).abs().max() < 0.05 * full.abs().max()
    with torch.no_grad():
        assert torch.equal(encoder.trunk(images), full)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(encoder.trunk(images), low)
    assert encoder.trunk[0].conv.kept.get_buffer("_weight").dtype == torch.bfloat16
