import logging

import pytest
import torch

from shoal.encoders.architectures import ARCHITECTURES
from shoal.encoders.openvino_trunk import warn_once
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.errors import UsageError
from small_models import KINDS

SPLIT = [kind for kind in KINDS if kind != "pvt"]
CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2-registers", "dinov3", "vit-msn")
WITH_BATCH_NORM = (
    "resnet",
    "regnet",
    "efficientnet",
    "mobilenet-v1",
    "mobilenet-v2",
    "mobilevit",
    "mobilevitv2",
)


@pytest.fixture(autouse=True)
def nothing_said_yet():
    warn_once.cache_clear()


def size_of(kind):
    return 64 if kind.startswith("mobilevit") else 32


def format_of(size):
    return InputFormat(size=size, mean=(0.5,) * 3, std=(0.5,) * 3)


def make_images(kind):
    return torch.randn(
        3, 3, size_of(kind), size_of(kind), generator=torch.Generator().manual_seed(0)
    )


def split(model, kind, n_tail_blocks):
    return Encoder(kind, split_model(model, size_of(kind)), format_of(size_of(kind)), n_tail_blocks)


def own_feature(model, kind, images):
    """What the library's own forward says, without anything of ours."""
    if (
        kind == "siglip2"
    ):  # takes patches: cut, each with its pixels in the order rows, columns, channels
        tiles = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (B, 3, 4, 4, 8, 8)
        patches = torch.stack(
            [tiles[:, :, i, j] for i in range(4) for j in range(4)], dim=1
        )  # (B, 16, 3, 8, 8)
        patches = patches.permute(0, 1, 3, 4, 2).flatten(2)
        shapes = torch.full((len(images), 2), 4)
        return model(patches, torch.ones(len(images), 16, dtype=torch.long), shapes).pooler_output
    if kind == "vit-mae":
        model.config.mask_ratio = 0.0
        out = model(images, noise=torch.arange(16.0).expand(len(images), 16))
    else:
        out = model(images)
    if kind == "ijepa":
        return out.last_hidden_state.mean(dim=1)
    return (
        out.last_hidden_state[:, 0]
        if kind in (*CLASS_TOKEN, "vit-mae")
        else out.pooler_output.flatten(1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLIT)
def test_trunk_and_tail_are_the_models_own_forward(make_transformer, kind):
    model = make_transformer(kind)
    images = make_images(kind)
    with torch.no_grad():
        own = own_feature(model, kind, images)
        n_blocks = len(split_model(model, size_of(kind)).blocks)
        for n_tail_blocks in {0, 1, 2, n_blocks}:
            encoder = split(model, kind, n_tail_blocks)
            found = encoder.tail(encoder.trunk(images))
            assert found.shape == (3, encoder.feature_dim)
            assert (found - own).abs().max() <= 1e-6 * own.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLIT)
def test_gradients_of_the_tail_are_those_of_the_whole_model(make_transformer, kind):
    model = make_transformer(kind)
    images = make_images(kind)
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
    for name, value in trained.items():  # a key's bias has no gradient but rounding
        torch.testing.assert_close(value.grad, expected[name], rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("kind", SPLIT)
def test_trunk_and_final_norm_stay_frozen(make_transformer, kind):
    model = make_transformer(kind)
    encoder = split(model, kind, 1)
    assert not any(value.requires_grad for value in encoder.trunk.parameters())
    is_trained = ARCHITECTURES[model.config.model_type].trains_finish
    assert all(value.requires_grad == is_trained for value in encoder.tail[-1].parameters())
    assert all(value.requires_grad for value in encoder.tail[0].parameters())


@pytest.mark.parametrize("kind", SPLIT)
def test_a_model_takes_images_of_another_size(make_transformer, kind):
    model = make_transformer(kind)
    size = size_of(kind) * 3 // 2
    encoder = split(model, kind, 1)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = encoder(images)
        assert found.shape == (2, encoder.feature_dim)
        if kind in (
            "beit-shared",
            "beit-relative",
            "dinov3",
            "swin",
            "swinv2",
            "convnext",
            "resnet",
        ):
            own = own_feature(model, kind, images)  # these need no word about the size
            assert (found - own).abs().max() <= 1e-6 * own.abs().max()


@pytest.mark.parametrize("kind", ["beit-shared", "dinov3"])
def test_what_blocks_share_is_moved_with_them_and_saved_with_none(make_transformer, kind):
    encoder = split(make_transformer(kind), kind, 2).to(torch.float64)
    assert encoder(make_images(kind).double()).dtype == torch.float64
    assert not any(
        name.startswith("context") or "shared" in name for name in encoder.tail.state_dict()
    )
    assert not any(value.requires_grad for value in encoder.context.parameters())


def test_a_model_that_cannot_be_split_is_used_whole_and_says_so(make_transformer, caplog):
    model = make_transformer("pvt")
    images = make_images("pvt")
    with caplog.at_level(logging.WARNING):
        encoder = split(model, "pvt", 0)
    assert "PvtV2Model is none of the architectures that can be split" in caplog.text
    assert "only the head is trained" in caplog.text
    with torch.no_grad():
        own = model(images).last_hidden_state.mean(dim=(2, 3))
        torch.testing.assert_close(encoder(images), own, rtol=0, atol=0)
    assert not any(value.requires_grad for value in encoder.parameters())
    with pytest.raises(UsageError):
        split(model, "pvt", 1)


class Output:
    def __init__(self, model, images):
        tokens = model.embeddings(images)
        self.last_hidden_state = model.renamed(tokens)
        self.pooler_output = None


def test_a_model_that_takes_no_images_is_refused(transformers):
    text = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    )
    with pytest.raises(UsageError):
        split_model(text, 32)
