import json
from pathlib import Path

import numpy as np
import pytest
import torch

from several_processes import finish_processes, start_processes
from shoal.training.inputs import ViewPool, pool_views
from shoal.training.loop import train
from shoal.training.sampling import POOL, Sampler, make_views, sample_view_parameters
from shoal.training.train_settings import ViewSettings
from shoal.training.trainer import Trainer


def test_the_pool_contains_the_tokens_of_every_sampled_view(toy):
    encoder = toy.encoder()
    pixels = torch.from_numpy(toy.data().pixels)
    settings = ViewSettings(pool=3)
    found = pool_views(
        pixels,
        encoder,
        settings,
        generator=torch.Generator().manual_seed(4),
        only=np.arange(3 * len(pixels)),
    )
    draws = sample_view_parameters(3 * len(pixels), torch.Generator().manual_seed(4))
    for image in (0, 17, 47):
        for view in range(3):
            row = 3 * image + view
            expected = encoder.trunk(
                make_views(pixels, torch.tensor([image]), draws[[row]], encoder, settings)
            )
            torch.testing.assert_close(found.tokens[row].float(), expected[0], rtol=0, atol=2e-3)


def test_two_views_of_an_image_from_a_pool_differ():
    n_images = 5
    n_views = 4
    rows = torch.arange(n_images * n_views)
    pool = ViewPool(rows[:, None].half(), n_views, rows)
    images = torch.arange(n_images).repeat(200)  # (1000,), as 500 images twice
    taken = pool.take(images, torch.rand(1000, 7, generator=torch.Generator().manual_seed(0)))[
        :, 0
    ].long()
    assert torch.equal(taken // n_views, images)
    one, other = taken.chunk(2)
    assert (one != other).all()
    assert all(len(set(taken[images == image].tolist())) == n_views for image in range(n_images))


def test_a_pool_of_only_the_used_views_gives_the_same_training(toy):
    """Two epochs use fewer than half of the sixteen views of each image."""
    settings = toy.settings(epochs=2, views=ViewSettings(pool=16))
    encoder = toy.encoder()
    pixels = toy.data().pixels
    draws = Sampler(toy.data().training_labels, settings)
    only = np.arange(16 * len(pixels))
    whole = pool_views(pixels, encoder, settings.views, generator=draws.generator(POOL), only=only)
    trainer = Trainer(toy.data(), *toy.networks(), settings)
    trainer.prepare()
    assert len(trainer.pool.tokens) < len(whole.tokens) / 2
    found = trainer.run_epoch(0)
    again = Trainer(toy.data(), *toy.networks(), settings)
    again.prepare()
    again.pool = whole
    # The pools are computed in other batches, which may round a token to an adjacent float16.
    assert again.run_epoch(0) == pytest.approx(found, rel=1e-3)
    assert torch.allclose(again.embed_all(), trainer.embed_all(), atol=1e-3)


TWO = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import make_data, make_networks, make_settings
from shoal.distributed import is_main, processes
from shoal.training.loop import train
from shoal.training.train_settings import ViewSettings
torch.set_num_threads(1)
with processes(torch.device("cpu")):
    networks = make_networks()
    settings = make_settings(batch_size=7, views=ViewSettings(pool=5))
    trained = train(make_data(), *networks, settings, folder=Path({out!r}))
    if is_main():
        torch.save(trained.embeddings, {out!r} + "/embeddings.pt")
"""


@pytest.mark.slow
def test_three_processes_share_the_pool_and_train_like_one(toy, tmp_path):
    """A batch of 7 is split into 3, 2 and 2."""
    code = TWO.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    running = start_processes(code, 3)
    settings = toy.settings(batch_size=7, views=ViewSettings(pool=5))
    alone = train(toy.data(), *toy.networks(), settings)
    finish_processes(running)
    together = [
        json.loads(row)["loss"] for row in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    # A third of the pool is computed in other batches; a token may round to an adjacent float16.
    assert together == pytest.approx([row["loss"] for row in alone.metrics], rel=1e-3)
    found = torch.load(tmp_path / "embeddings.pt", weights_only=True)
    torch.testing.assert_close(found, alone.embeddings, rtol=0, atol=1e-3)


def test_a_finished_run_computes_no_views_when_resumed(toy, tmp_path, monkeypatch):
    settings = toy.settings(views=ViewSettings(pool=3))
    before = train(toy.data(), *toy.networks(), settings, folder=tmp_path)
    monkeypatch.delattr("shoal.training.trainer.pool_views")
    after = train(toy.data(), *toy.networks(), settings, folder=tmp_path, resume=True)
    assert torch.equal(before.embeddings, after.embeddings)
    assert before.metrics == after.metrics
