import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings
from shoal.encoders.head import Head, HeadSettings, compact
from shoal.methods.cms import Bank

SHIFT = ShiftSettings(n_neighbors=3, alpha=0.5)


@pytest.fixture
def embeddings():
    return F.normalize(torch.randn(20, 10, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.fixture
def views(embeddings):
    noise = torch.randn(20, 10, generator=torch.Generator().manual_seed(1))
    return F.normalize(embeddings + 0.1 * noise, dim=1)


def test_neighbors_leave_out_the_views_own_image(embeddings, views):
    bank = Bank(rows=embeddings, basis=None)
    images = torch.arange(20)
    found = bank.neighbors(views, images, SHIFT).indices
    similarity = (views @ embeddings.T).fill_diagonal_(-torch.inf)
    assert torch.equal(found, similarity.topk(3, dim=1).indices)


def test_a_shift_is_equation_5(embeddings, views):
    """norm of half the view plus half the mean of its three neighbors."""
    bank = Bank(rows=embeddings, basis=None)
    neighbors = bank.neighbors(views, torch.arange(20), SHIFT)
    expected = F.normalize(0.5 * views + 0.5 * embeddings[neighbors.indices].mean(dim=1), dim=1)
    torch.testing.assert_close(bank.shift(views, neighbors, SHIFT), expected)
    torch.testing.assert_close(bank.shift(views, neighbors, SHIFT, detach_norm=True), expected)


def test_gradients_flow_through_the_view_and_not_through_the_bank(embeddings, views):
    rows = embeddings.clone().requires_grad_()
    views = views.clone().requires_grad_()
    bank = Bank(rows=rows.detach(), basis=None)
    bank.shift(views, bank.neighbors(views, torch.arange(20), SHIFT), SHIFT).sum().backward()
    assert views.grad.abs().sum() > 0
    assert rows.grad is None


def test_a_compact_bank_finds_and_shifts_as_the_full_one_does():
    torch.manual_seed(0)
    head = Head(8, HeadSettings(kind="bottleneck", width=16, dim=10, bottleneck=4))
    rows = head(torch.randn(20, 8)).detach()
    views = head(torch.randn(20, 8)).detach()
    full = Bank(rows=rows, basis=None)
    short = Bank(rows=compact(rows, head.basis()), basis=head.basis())
    images = torch.arange(20)
    a = full.neighbors(views, images, SHIFT)
    b = short.neighbors(views, images, SHIFT)
    assert torch.equal(a.indices, b.indices)
    torch.testing.assert_close(
        short.shift(views, b, SHIFT), full.shift(views, a, SHIFT), rtol=0, atol=1e-6
    )
    assert short.rows.shape == (20, 4)


def test_a_bank_of_views_drops_the_nearest_row_whatever_it_is(embeddings, views):
    bank = Bank(rows=torch.cat([embeddings, views]), basis=None, kind="views")
    found = bank.neighbors(views, torch.arange(20), SHIFT).indices
    assert torch.equal(found, (views @ bank.rows.T).topk(4, dim=1).indices[:, 1:])
    assert (found == torch.arange(20)[:, None]).any(), (
        "the other view of an image may stay among its neighbors"
    )


@pytest.mark.parametrize("kernel", ["uniform", "gaussian"])
def test_other_kernels_shift_onto_the_sphere(embeddings, views, kernel):
    settings = ShiftSettings(kernel=kernel, min_similarity=0.2, bandwidth=0.5)
    bank = Bank(rows=embeddings, basis=None)
    moved = bank.shift(views, bank.neighbors(views, torch.arange(20), settings), settings)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(20))
    assert not torch.allclose(moved, views, atol=1e-3)


def test_learned_attention_is_given_gradients(embeddings, views):
    torch.manual_seed(0)
    settings = ShiftSettings(n_neighbors=3, aggregation="attention")
    attention = NeighborAttention(10)
    bank = Bank(rows=embeddings, basis=None)
    neighbors = bank.neighbors(views, torch.arange(20), settings)
    bank.shift(views, neighbors, settings, attention=attention)[:, 0].sum().backward()
    assert attention.query.weight.grad.abs().sum() > 0
