import pytest
import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, split_transformer
from shoal.errors import UsageError

FORMAT = InputFormat(size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
TRANSFORMERS = ["vit", "dinov2", "clip"]


def own_feature(model, images):
    out = model(images)
    return out.pooler_output if type(model).__name__ == "CLIPVisionModel" else out.last_hidden_state[:, 0]


@pytest.fixture
def images():
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_tail_blocks", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_trunk_and_tail_are_the_transformers_own_forward(make_transformer, images, kind, n_tail_blocks):
    model = make_transformer(kind)
    encoder = Encoder(kind, split_transformer(model, 32), FORMAT, n_tail_blocks)
    with torch.no_grad():
        torch.testing.assert_close(encoder.tail(encoder.trunk(images)), own_feature(model, images), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_gradients_of_the_tail_are_those_of_the_whole_transformer(make_transformer, images, kind):
    model = make_transformer(kind)
    whole = {name: value for name, value in model.named_parameters() if value.requires_grad}
    own_feature(model, images).pow(2).sum().backward()
    expected = {name: value.grad.clone() for name, value in whole.items() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    encoder = Encoder(kind, split_transformer(model, 32), FORMAT, 2)
    with torch.inference_mode():
        tokens = encoder.trunk(images)
    encoder.tail(tokens.clone()).pow(2).sum().backward()
    trained = {name: value for name, value in whole.items() if value.grad is not None}
    assert {id(value) for value in trained.values()} == {id(v) for v in encoder.parameters() if v.requires_grad}
    assert len(trained) > 10
    for name, value in trained.items():
        torch.testing.assert_close(value.grad, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_final_norm_and_trunk_stay_frozen(make_transformer, kind):
    encoder = Encoder(kind, split_transformer(make_transformer(kind), 32), FORMAT, 1)
    assert not any(value.requires_grad for value in encoder.trunk.parameters())
    assert not any(value.requires_grad for value in encoder.tail[-1].parameters())
    assert all(value.requires_grad for value in encoder.tail[0].parameters())


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_transformer_takes_images_of_another_size(make_transformer, kind):
    encoder = Encoder(kind, split_transformer(make_transformer(kind), 32), FORMAT, 1)
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 48, 48)).shape == (2, 32)


def test_a_model_without_a_list_of_blocks_is_refused():
    with pytest.raises(UsageError, match=r"Linear has no embeddings.*use a ViT"):
        split_transformer(nn.Linear(2, 2), 32)


def test_a_model_whose_output_is_no_class_token_is_refused(make_transformer):
    model = make_transformer("clip")

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.vision_model, self.config = model, model.config

        def forward(self, images):
            out = model(images)
            out.pooler_output, out.last_hidden_state = 2 * out.pooler_output, 2 * out.last_hidden_state
            return out

    with pytest.raises(UsageError, match="Doubled differs from its own forward"):
        split_transformer(Doubled(), 32)


@pytest.mark.parametrize("size", [0, 7])
def test_an_input_too_small_is_refused(size):
    with pytest.raises(UsageError, match="at least 8 pixels"):
        InputFormat(size=size, mean=(0, 0, 0), std=(1, 1, 1))
