import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.mean_shift import ShiftSettings
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
