import logging

import pytest
import torch

from shoal.encoders.engines import warn_once
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.errors import MissingError, UsageError
from small_models import KINDS

SPLIT = [kind for kind in KINDS if kind not in ("vit-mae", "resnet", "pvt")]
CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2-registers", "dinov3", "vit-msn")


@pytest.fixture(autouse=True)
def nothing_said_yet():
    warn_once.cache_clear()


def make_images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def split(model, kind, n_tail_blocks):
    plain = InputFormat(size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    return Encoder(kind, split_model(model, 32), plain, n_tail_blocks)


def own_feature(model, kind, images):
    """Return the feature from the library's own forward pass."""
    out = model(images)
    return out.last_hidden_state[:, 0] if kind in CLASS_TOKEN else out.pooler_output.flatten(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLIT)
def test_trunk_and_tail_are_the_models_own_forward(make_transformer, kind):
    model = make_transformer(kind)
    images = make_images()
    with torch.no_grad():
        own = own_feature(model, kind, images)
        n_blocks = len(split_model(model, 32).blocks)
        for n_tail_blocks in {0, 1, 2, n_blocks}:
            encoder = split(model, kind, n_tail_blocks)
            found = encoder.tail(encoder.trunk(images))
            assert found.shape == (3, encoder.feature_dim)
            assert (found - own).abs().max() <= 1e-6 * own.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLIT)
def test_gradients_of_the_tail_are_those_of_the_whole_model(make_transformer, kind):
    model = make_transformer(kind)
    images = make_images()
    whole = {name: value for name, value in model.named_parameters() if value.requires_grad}
    own_feature(model, kind, images).pow(2).sum().backward()
    expected = {name: value.grad.clone() for name, value in whole.items() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    encoder = split(model, kind, 2)
    with torch.inference_mode():
        tokens = encoder.trunk(images)
    encoder.tail(tokens.clone()).pow(2).sum().backward()
    trained = {name: value for name, value in whole.items() if value.grad is not None}
    wanting = {id(value) for value in encoder.parameters() if value.requires_grad}
    assert {id(value) for value in trained.values()} == wanting
    assert len(trained) >= 6
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, value in trained.items():  # the gradient of a key's bias is rounding only
        torch.testing.assert_close(value.grad, expected[name], rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("kind", SPLIT)
def test_trunk_and_final_norm_stay_frozen(make_transformer, kind):
    model = make_transformer(kind)
    encoder = split(model, kind, 1)
    assert not any(value.requires_grad for value in encoder.trunk.parameters())
    assert not any(value.requires_grad for value in encoder.tail[-1].parameters())
    assert all(value.requires_grad for value in encoder.tail[0].parameters())


@pytest.mark.parametrize("kind", SPLIT)
def test_a_model_takes_images_of_another_size(make_transformer, kind):
    model = make_transformer(kind)
    encoder = split(model, kind, 1)
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder(images)
        assert found.shape == (2, encoder.feature_dim)
        if kind == "dinov3":
            own = own_feature(model, kind, images)  # it accepts other sizes without an argument
            assert (found - own).abs().max() <= 1e-6 * own.abs().max()


def test_what_blocks_share_is_moved_with_them_and_saved_with_none(make_transformer):
    kind = "dinov3"
    encoder = split(make_transformer(kind), kind, 2).to(torch.float64)
    assert encoder(make_images().double()).dtype == torch.float64
    assert not any(
        name.startswith("context") or "shared" in name for name in encoder.tail.state_dict()
    )
    assert not any(value.requires_grad for value in encoder.context.parameters())


def test_a_model_that_cannot_be_split_is_used_whole_and_says_so(make_transformer, caplog):
    model = make_transformer("pvt")
    images = make_images()
    with caplog.at_level(logging.WARNING):
        encoder = split(model, "pvt", 0)
    assert "PvtV2Model is not one of the architectures that can be split" in caplog.text
    assert "only the head is trained" in caplog.text
    with torch.no_grad():
        own = model(images).last_hidden_state.mean(dim=(2, 3))
        torch.testing.assert_close(encoder(images), own, rtol=0, atol=0)
    assert not any(value.requires_grad for value in encoder.parameters())
    with pytest.raises(UsageError):
        split(model, "pvt", 1)


def test_a_model_that_takes_no_images_is_refused(transformers):
    text = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    )
    with pytest.raises(UsageError):
        split_model(text, 32)


def test_a_model_that_masks_images_at_random_is_refused(make_transformer):
    with pytest.raises(MissingError):
        split_model(make_transformer("vit-mae"), 32)
