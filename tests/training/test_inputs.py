import errno

import pytest
import torch

from shoal.encoders.vision import Head, HeadSettings, embed
from shoal.errors import ShoalError
from shoal.training import inputs
from shoal.training.inputs import ImageInputs, TokenCollector, cache_tokens

CPU = torch.device("cpu")


def test_embeddings_from_cached_tokens_equal_those_of_the_encoder(toy, monkeypatch):
    monkeypatch.setattr(inputs, "TOKEN_BATCH", 7)
    encoder = toy.encoder()
    pixels = toy.data().pixels
    head = Head(16, HeadSettings(width=24, dim=10, bottleneck=6))
    expected = ImageInputs(pixels, encoder).embed(lambda images: head(encoder(images)), CPU)
    found = cache_tokens(pixels, encoder).embed(lambda rows: head(encoder.tail(rows)), CPU)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)  # tokens are cached in float16
    assert found.dtype == torch.float32
    assert not found.is_inference(), "whoever is given them may use them in place"


def test_collected_tokens_equal_those_of_the_trunk(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    keeper = TokenCollector(len(pixels))
    embeddings = embed(pixels, encoder)
    assert torch.equal(embed(pixels, encoder, on_tokens=keeper), embeddings)
    assert torch.equal(keeper.tokens, cache_tokens(pixels, encoder).tokens)
    assert not keeper.tokens.is_inference(), "training keeps them for its gradients"


def test_values_beyond_float16_are_clamped(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    with torch.no_grad():
        encoder.trunk[0].weight.mul_(1e7)
    assert cache_tokens(pixels, encoder).tokens.isfinite().all()


def test_a_full_disk_for_tokens_raises_an_error(toy, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    monkeypatch.setattr(inputs, "SHARE_OF_MEMORY", 0)
    monkeypatch.setattr("shoal.files.MAX_SCRATCH_BYTES", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ShoalError, match="no space left"):
        cache_tokens(toy.data().pixels, toy.encoder())
