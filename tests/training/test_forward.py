import torch

from shoal.training.forward import Forward
from shoal.training.views import ViewSettings, draw_views, make_views


def test_the_parts_of_a_pass_are_views_trunk_and_model(toy):
    (model,) = toy.networks()
    encoder = model.encoder
    pixels = torch.from_numpy(toy.data().pixels)
    rows = torch.tensor([3, 0, 7])
    draws = draw_views(3, torch.Generator().manual_seed(0))
    settings = ViewSettings()
    passes = Forward(model, settings)
    passes.pixels = pixels
    tokens = passes.inputs(rows, draws, n_views=1)
    embeddings = passes.outputs(tokens)["embeddings"]
    views = make_views(pixels, rows, draws, encoder, settings)
    assert torch.equal(embeddings, model.head(encoder(views)))
    assert not tokens.requires_grad
    assert embeddings.requires_grad
