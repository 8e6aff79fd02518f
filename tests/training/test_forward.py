import pytest
import torch

from shoal.encoders.catalog import load_encoder
from shoal.encoders.head import HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.errors import MissingError
from shoal.methods.cms import Cms, CmsSettings
from shoal.training import forward
from shoal.training.forward import Forward
from shoal.training.loop import train
from shoal.training.model import TaskShape
from shoal.training.views import ViewSettings, draw_views, make_views
from small_models import make_model


def test_the_parts_of_a_pass_are_views_trunk_and_model(toy):
    (model,) = toy.networks()
    encoder = model.encoder
    pixels = torch.from_numpy(toy.data().pixels)
    rows = torch.tensor([3, 0, 7])
    draws = draw_views(3, torch.Generator().manual_seed(0))
    settings = ViewSettings()
    passes = Forward(model, settings)
    passes.pixels = pixels
    tokens, outputs = passes.run(rows, draws, n_views=1)
    embeddings = outputs["embeddings"]
    views = make_views(pixels, rows, draws, encoder, settings)
    assert torch.equal(embeddings, model.head(encoder(views)))
    assert not tokens.requires_grad
    assert embeddings.requires_grad


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, when its compiler is first imported
@pytest.mark.parametrize("bank", ["images", "views"])
def test_networks_are_taken_in_one_piece_and_batches_cut_short_too(toy, monkeypatch, bank):
    """As far as a machine without a GPU can tell: traced whole, `fullgraph`, and run as they were traced.

    96 views for the bank are six batches of 14 and one of 12.
    """
    monkeypatch.setitem(forward.HOW, "cpu", {"backend": "aot_eager", "fullgraph": True})
    losses = []
    for is_compiled in (False, True):
        settings = toy.settings(epochs=2, batch_size=7, bank=bank, compile=is_compiled)
        trained = train(toy.data(), *toy.networks(bank=bank, denominator="reference"), settings)
        losses.append([row["loss"] for row in trained.metrics])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore:mkldnn_matmul failed"
)  # a processor without bfloat16: torch takes another way
@pytest.mark.parametrize("name", ["vit", "efficientnet-lite2"])
def test_real_networks_are_taken_in_one_piece_in_the_precision_of_a_gpu(monkeypatch, name):
    """In bfloat16 by autocast, as on a GPU; a break in a piece would be an error."""
    if name == "vit":
        parts = split_model(make_model(import_transformers(), name), 32)
        encoder = Encoder(name, parts, InputFormat(size=32, mean=(0.5,) * 3, std=(0.5,) * 3), 1)
    else:
        encoder = load_encoder(name, input_size=32)
    settings = CmsSettings(head=HeadSettings(width=32, dim=16, bottleneck=8))
    model = Cms(encoder, settings, TaskShape(n_images=4, n_known=1, n_clusters=None))
    monkeypatch.setattr(
        forward, "autocast", lambda device: torch.autocast("cpu", dtype=torch.bfloat16)
    )
    monkeypatch.setitem(forward.HOW, "cpu", {"backend": "aot_eager", "fullgraph": True})
    cut = torch.randint(
        0, 256, (4, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    draws = draw_views(4, torch.Generator().manual_seed(1))
    found = []
    for is_compiled in (False, True):
        passes = Forward(model, ViewSettings(), is_compiled=is_compiled)
        embeddings = passes.outputs(passes.tokens(cut, draws))["embeddings"]
        embeddings[:, 0].sum().backward()
        found.append([embeddings.detach(), *(value.grad for value in model.head.parameters())])
        model.head.zero_grad()
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, on the GPU's precision among others
@pytest.mark.parametrize("bank", ["images", "views"])
@pytest.mark.parametrize("how", [{"mode": "reduce-overhead"}, {"backend": "cudagraphs"}], ids=str)
def test_cuda_graphs_train_as_plain_networks_do(toy, monkeypatch, bank, how):
    monkeypatch.setitem(forward.HOW, "cuda", how)
    losses = []
    for is_compiled in (False, True):
        networks = [
            network.to("cuda") for network in toy.networks(bank=bank, denominator="reference")
        ]
        settings = toy.settings(epochs=4, batch_size=7, bank=bank, compile=is_compiled)
        losses.append([row["loss"] for row in train(toy.data(), *networks, settings).metrics])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, when its compiler is first imported
def test_compiled_networks_train_as_plain_ones_do(toy):
    """Another order of additions, so equal to rounding."""
    losses = []
    for is_compiled in (False, True):
        trained = train(toy.data(), *toy.networks(), toy.settings(epochs=2, compile=is_compiled))
        losses.append([row["loss"] for row in trained.metrics])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, when its compiler is first imported
def test_without_a_compiler_an_error_says_what_to_install_or_to_set(toy, monkeypatch):
    def refuse(*given):
        raise RuntimeError(
            "No working C++ compiler found"
        )  # which torch wraps in an error of its own

    monkeypatch.setitem(forward.HOW, "cpu", {"backend": refuse})
    with pytest.raises(
        MissingError,
        match=r"compile the networks \(.*\); install a C\+\+ compiler .*compile: false",
    ):
        train(toy.data(), *toy.networks(), toy.settings(compile=True))


def test_an_error_of_the_networks_is_not_taken_for_one_of_the_compiler():
    with pytest.raises(RuntimeError, match="shapes"), forward.explain_compiler():
        raise RuntimeError("shapes do not fit")
