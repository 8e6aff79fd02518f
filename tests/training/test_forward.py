import pytest
import torch

from shoal.training.forward import Forward
from shoal.training.loop import train
from shoal.training.views import ViewSettings, draw_views, make_views


def test_the_parts_of_a_pass_are_views_trunk_tail_and_head(toy):
    encoder, head, _ = toy.networks()
    pixels, rows = torch.from_numpy(toy.data().pixels), torch.tensor([3, 0, 7])
    draws, settings = draw_views(3, torch.Generator().manual_seed(0)), ViewSettings()
    passes = Forward(encoder, head, settings)
    tokens = passes.tokens(passes.cut(pixels, rows, draws), draws)
    features, embeddings = passes.embeddings(tokens)
    views = make_views(pixels, rows, draws, encoder, settings)
    assert torch.equal(features, encoder(views))
    assert torch.equal(embeddings, head(encoder(views)))
    assert not tokens.requires_grad
    assert embeddings.requires_grad


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is first imported
def test_compiled_networks_train_as_plain_ones_do(toy):
    """Another order of additions, so equal to rounding."""
    losses = []
    for is_compiled in (False, True):
        trained = train(toy.data(), *toy.networks(), toy.settings(epochs=2, compile=is_compiled))
        losses.append([row["loss"] for row in trained.metrics])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
