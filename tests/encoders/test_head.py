import pytest
import torch
from torch import nn

from shoal.encoders.vision import Head, HeadSettings
from shoal.errors import UsageError
from shoal.settings import from_dict


@pytest.fixture
def bottleneck():
    torch.manual_seed(0)
    return Head(20, HeadSettings(kind="bottleneck", width=32, dim=24, bottleneck=6))


@pytest.fixture
def features():
    return torch.randn(15, 20, generator=torch.Generator().manual_seed(1))


def shapes(head):
    return [tuple(layer.weight.shape) for layer in head.layers if isinstance(layer, nn.Linear)]


def test_the_papers_head_has_three_wide_layers_and_768_outputs():
    with torch.device("meta"):  # shapes only; sampling weights takes long
        head = Head(768, HeadSettings(kind="paper"))
    assert shapes(head) == [(2048, 768), (2048, 2048), (2048, 2048), (768, 2048)]
    assert [type(layer) for layer in head.layers[1::2]] == [nn.GELU] * 3
    assert head.output is None


def test_the_released_head_has_two_wide_layers_and_a_bottleneck_of_256():
    with torch.device("meta"):
        head = Head(768, HeadSettings(kind="bottleneck"))
    assert shapes(head) == [(2048, 768), (2048, 2048), (256, 2048)]
    assert head.output.shape == (768, 256)
    n_weights = sum(value.numel() for value in head.parameters())
    assert round(n_weights / 1e6, 2) == 6.49  # the count measured for the released code


def test_the_output_is_a_weight_normed_layer_over_a_normed_bottleneck(bottleneck, features):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 24, bias=False))
    layer.parametrizations.weight.original0.data.fill_(1)
    layer.parametrizations.weight.original1.data.copy_(bottleneck.output)
    hidden = nn.functional.normalize(bottleneck.layers(features), dim=1)
    torch.testing.assert_close(bottleneck(features), nn.functional.normalize(layer(hidden), dim=1))


@pytest.mark.parametrize("field", ["width", "dim", "bottleneck"])
def test_a_layer_without_width_is_refused(field):
    with pytest.raises(UsageError):
        from_dict(HeadSettings, {field: 0})


@pytest.mark.parametrize("kind", ["paper", "bottleneck"])
def test_a_view_without_features_takes_no_part_in_the_gradient(features, kind):
    """Biases start at zero, so the embedding of such a view is zero; the gradient of the
    normalization would swamp those of the others."""

    def gradients(rows):
        torch.manual_seed(0)
        head = Head(20, HeadSettings(kind=kind, width=32, dim=24, bottleneck=6))
        target = torch.randn(24, generator=torch.Generator().manual_seed(2))
        embeddings = head(rows)
        (embeddings @ target).sum().backward()
        return embeddings, [parameter.grad for parameter in head.parameters()]

    silent = features.clone()
    silent[3] = 0
    others = torch.cat([silent[:3], silent[4:]])
    embeddings, found = gradients(silent)
    assert torch.equal(embeddings[3], torch.zeros(24))
    for ours, expected in zip(found, gradients(others)[1], strict=True):
        torch.testing.assert_close(ours, expected)
