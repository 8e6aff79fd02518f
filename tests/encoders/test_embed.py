from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from several_processes import finish_processes, start_processes
from shoal.encoders import vision as module
from shoal.encoders.vision import (
    Encoder,
    Head,
    HeadSettings,
    InputFormat,
    Parts,
    center_images,
    embed,
    embed_blocks,
)
from shoal.training.inputs import ImageInputs
from small_models import Mean


def tiny_encoder(size=8):
    torch.manual_seed(0)
    parts = Parts(
        stem=nn.Conv2d(3, 7, 3, padding=1),
        blocks=[nn.ReLU(), nn.Conv2d(7, 7, 3)],
        finish=Mean(),
        is_finish_trained=False,
        feature_dim=7,
    )
    return Encoder("tiny", parts, InputFormat(size=size, mean=(0.5,) * 3, std=(0.25,) * 3), 1)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, size=(23, 16, 16, 3), dtype=np.uint8)


def test_embeddings_are_the_normalized_features_of_center_crops(pixels):
    encoder = tiny_encoder(size=14)
    cut = (
        torch.from_numpy(pixels[:, 1:15, 1:15]).permute(0, 3, 1, 2) / 255
    )  # 14 of 16 pixels, no scaling needed
    with torch.no_grad():
        expected = F.normalize(encoder((cut - 0.5) / 0.25), dim=1)
    torch.testing.assert_close(embed(pixels, encoder), expected)


@pytest.mark.parametrize("batch_size", [1, 7, 23])
def test_embeddings_do_not_depend_on_batch_size(pixels, monkeypatch, batch_size):
    encoder = tiny_encoder()
    whole = embed(pixels, encoder)
    monkeypatch.setattr(module, "BATCH_IMAGES", batch_size)
    torch.testing.assert_close(embed(pixels, encoder), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [8, 64])
def test_images_are_scaled_to_the_encoders_input(pixels, size):
    encoder = tiny_encoder(size=size)
    images = center_images(torch.from_numpy(pixels), encoder)
    assert images.shape == (23, 3, size, size)
    assert images.min() >= -2
    assert images.max() <= 2


def test_the_head_is_applied_and_its_embeddings_are_unit_rows(pixels):
    encoder = tiny_encoder()
    head = Head(7, HeadSettings(width=16, dim=5, bottleneck=4))
    embeddings = ImageInputs(pixels, encoder).embed(
        lambda images: head(encoder(images)), torch.device("cpu")
    )
    assert embeddings.shape == (23, 5)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(23))
    assert not embeddings.requires_grad


def test_a_memory_map_and_a_tensor_give_what_an_array_gives(tmp_path, pixels):
    encoder = tiny_encoder()
    file = tmp_path / "pixels.npy"
    np.save(file, pixels)
    expected = embed(pixels, encoder)
    assert torch.equal(embed(np.load(file, mmap_mode="r"), encoder), expected)
    assert torch.equal(embed(torch.from_numpy(pixels), encoder), expected)


def test_blocks_as_they_come_are_the_rows_of_the_whole(pixels, monkeypatch):
    monkeypatch.setattr(module, "BATCH_IMAGES", 4)
    monkeypatch.setattr(module, "BLOCK_BATCHES", 2)
    encoder = tiny_encoder()
    found = [(rows, block.clone()) for rows, block in embed_blocks(pixels, encoder)]
    assert [(rows.start, rows.stop) for rows, _ in found] == [(0, 8), (8, 16), (16, 23)]
    assert torch.equal(torch.cat([block for _, block in found]), embed(pixels, encoder))


TWO = """
import sys, numpy as np, torch
sys.path.insert(0, {tests!r})
from test_embed import tiny_encoder
from shoal.distributed import processes, is_main
from shoal.encoders import vision as module
from shoal.encoders.vision import embed
torch.set_num_threads(1)
# 12 and 11 rows by 4: three rounds, the last one with rows of one process fewer.
module.BATCH_IMAGES = 4
module.BLOCK_BATCHES = 1
with processes(torch.device("cpu")):
    pixels = np.random.default_rng(0).integers(0, 256, size=(23, 16, 16, 3), dtype=np.uint8)
    found = embed(pixels, tiny_encoder())
    if is_main():
        np.save({out!r}, found.numpy())
"""


@pytest.mark.slow
def test_two_processes_share_the_rows_and_agree_with_one(tmp_path, pixels):
    out = tmp_path / "found.npy"
    code = TWO.format(tests=str(Path(__file__).parent), out=str(out))
    finish_processes(start_processes(code))
    np.testing.assert_allclose(
        np.load(out), embed(pixels, tiny_encoder()).numpy(), rtol=1e-5, atol=1e-6
    )
