import pytest
import torch
from torch import nn

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
