from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.encoders.embed import embed
from shoal.encoders.head import Head, HeadSettings
from shoal.errors import ShoalError
from shoal.training import tokens
from shoal.training.tokens import ImageInputs, TokenKeeper, cache_tokens, resident, take

CPU = torch.device("cpu")

NEXT_HALF = 1e-3
"""How far unit rows may lie apart where another batch has rounded a token to the next float16."""


def test_embeddings_from_cached_tokens_are_those_of_the_whole_encoder(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    head = Head(16, HeadSettings(width=24, dim=10, bottleneck=6))
    expected = ImageInputs(pixels, encoder, 48).embed(lambda images: head(encoder(images)), CPU)
    found = cache_tokens(pixels, encoder, batch_size=7).embed(
        lambda tokens: head(encoder.tail(tokens)), CPU
    )
    torch.testing.assert_close(
        found, expected, rtol=0, atol=2e-3
    )  # tokens are kept in half precision
    assert found.dtype == torch.float32
    assert not found.is_inference(), "whoever is given them may use them in place"


def test_tokens_that_embedding_leaves_are_those_of_the_trunk(toy, monkeypatch):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    keeper = TokenKeeper(len(pixels))
    embeddings = embed(pixels, encoder)
    assert torch.equal(embed(pixels, encoder, on_tokens=keeper), embeddings)
    assert torch.equal(keeper.tokens, cache_tokens(pixels, encoder).tokens)
    assert not keeper.tokens.is_inference(), "training keeps them for its gradients"
    monkeypatch.setattr(tokens, "free_memory", lambda device: 100)
    without_room = TokenKeeper(len(pixels))
    assert torch.equal(embed(pixels, encoder, on_tokens=without_room), embeddings)
    assert without_room.tokens is None


def test_tokens_follow_the_tail_when_it_is_trained(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    tokens = cache_tokens(pixels, encoder)
    before = tokens.embed(encoder.tail, CPU)
    with torch.no_grad():
        for value in encoder.tail.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(
        tokens.embed(encoder.tail, CPU), embed(pixels, encoder), rtol=0, atol=2e-3
    )
    assert not torch.allclose(tokens.embed(encoder.tail, CPU), before, atol=0.1)


def test_tokens_that_do_not_fit_go_to_a_file_and_give_the_same_embeddings(toy, tmp_path):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    on_device = cache_tokens(pixels, encoder)
    on_disk = cache_tokens(pixels, encoder, file=tmp_path / "tokens.npy", memory=100)
    assert on_device.is_resident
    assert not on_disk.is_resident
    assert (tmp_path / "tokens.npy.0").is_file()
    assert torch.equal(on_disk.embed(encoder.tail, CPU), on_device.embed(encoder.tail, CPU))
    on_disk.remove()
    on_device.remove()
    assert not list(tmp_path.iterdir())


def test_tokens_of_some_images_are_theirs_in_the_order_asked_for(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    some = np.array([5, 2, 40])
    whole = cache_tokens(pixels, encoder).embed(encoder.tail, CPU)
    found = cache_tokens(pixels, encoder, images=some).embed(encoder.tail, CPU)
    torch.testing.assert_close(found, whole[some], rtol=0, atol=NEXT_HALF)


def test_numbers_beyond_half_precision_are_cut_and_stay_finite(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    with torch.no_grad():
        encoder.trunk[0].weight.mul_(1e7)
    assert cache_tokens(pixels, encoder).tokens.isfinite().all()


def test_the_batch_size_does_not_matter(toy):
    encoder = toy.encoder()
    pixels = toy.data().pixels
    whole = cache_tokens(pixels, encoder, batch_size=48).embed(encoder.tail, CPU)
    found = cache_tokens(pixels, encoder, batch_size=5).embed(encoder.tail, CPU)
    torch.testing.assert_close(found, whole, rtol=0, atol=NEXT_HALF)


def test_progress_counts_the_images(toy):
    seen = []
    cache_tokens(
        toy.data().pixels,
        toy.encoder(),
        batch_size=20,
        progress=lambda *counts: seen.append(counts),
    )
    assert seen == [(20, 48), (40, 48), (48, 48)]


def test_pixels_that_fit_are_brought_to_the_device_and_others_are_left(toy):
    pixels = toy.data().pixels
    cpu = torch.device("cpu")
    assert torch.equal(resident(pixels, cpu), torch.from_numpy(pixels))
    assert resident(pixels, cpu, memory=10) is pixels


def test_several_processes_leave_pixels_where_all_of_them_find_them(toy, monkeypatch):
    pixels = toy.data().pixels
    monkeypatch.setattr(tokens, "world_size", lambda: 2)
    assert resident(pixels, torch.device("cpu")) is pixels
    assert resident(pixels, torch.device("cuda")) is pixels


def test_rows_are_taken_from_pixels_on_the_device_or_copied_from_the_host(toy):
    pixels = toy.data().pixels
    rows = torch.tensor([3, 9, 3])
    cpu = torch.device("cpu")
    for held in (pixels, torch.from_numpy(pixels)):
        source, positions = take(held, rows, cpu)
        assert torch.equal(source[positions], torch.from_numpy(pixels[rows.numpy()]))


def test_out_of_memory_in_the_pass_through_the_trunk_names_the_batch_size(toy, monkeypatch):
    encoder = toy.encoder()

    def fail(images):
        raise torch.OutOfMemoryError("CUDA out of memory")

    trunk = encoder.trunk.forward  # one image, to see the shape of its tokens, still fits
    monkeypatch.setattr(
        encoder.trunk, "forward", lambda images: trunk(images) if len(images) == 1 else fail(images)
    )
    with pytest.raises(
        ShoalError, match=r"lower training\.batch_size \(the trunk takes 16 images at once\)"
    ):
        cache_tokens(toy.data().pixels, encoder, batch_size=16)


def test_a_disk_without_room_for_the_tokens_is_an_error_and_not_a_crash(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(
        ShoalError,
        match=r"tokens of 48 images or views take 0.0 GB.*disk has 0.0 GB left; free some",
    ):
        cache_tokens(toy.data().pixels, toy.encoder(), file=tmp_path / "tokens.npy", memory=100)
    assert not list(tmp_path.iterdir())
