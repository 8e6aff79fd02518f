import pytest
import torch
from torch.nn import functional as F

from shoal.errors import UsageError
from shoal.methods.cms import LossSettings
from shoal.settings import from_dict
from shoal.training.losses import contrastive_loss, supervised_loss
from slow_steps import contrast, supervise


@pytest.fixture
def views():
    return F.normalize(
        torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )


LABELS = torch.tensor([0, 0, 1, -1, 2, -1]).repeat(2)


@pytest.mark.parametrize("temperature", [0.07, 0.25, 1.0])
@pytest.mark.parametrize("with_positive", [True, False])
def test_the_contrastive_loss_is_equation_6(views, temperature, with_positive):
    found = contrastive_loss(views, temperature, with_positive=with_positive)
    torch.testing.assert_close(found, contrast(views, temperature, with_positive=with_positive))


@pytest.mark.parametrize("temperature", [0.07, 1.0])
@pytest.mark.parametrize("with_positives", [True, False])
def test_the_supervised_loss_is_equation_7(views, temperature, with_positives):
    found = supervised_loss(views, LABELS, temperature, with_positives=with_positives)
    expected = supervise(views, LABELS.tolist(), temperature, with_positives=with_positives)
    torch.testing.assert_close(found, expected)


def test_without_labeled_images_the_supervised_loss_and_its_gradient_are_zero(views):
    views = views.clone().requires_grad_()
    loss = supervised_loss(views, torch.full((12,), -1), 0.07)
    loss.backward()
    assert loss.item() == 0
    assert not views.grad.any()


def test_unlabeled_rows_do_not_affect_the_supervised_loss(views):
    first, second = (views.clone().requires_grad_() for _ in range(2))
    with torch.no_grad():
        second[3] = -second[3]
        second[11] = second[0]
    losses = [supervised_loss(v, LABELS, 0.1) for v in (first, second)]
    for loss in losses:
        loss.backward()
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(first.grad[LABELS >= 0], second.grad[LABELS >= 0])
    assert not second.grad[LABELS < 0].any()


def test_a_batch_of_one_class_has_a_finite_loss_and_gradient(views):
    views = views.clone().requires_grad_()
    loss = supervised_loss(views, torch.zeros(12, dtype=torch.int64), 0.07)
    loss.backward()
    assert loss.isfinite()
    assert views.grad.isfinite().all()


def test_gradients_match_finite_differences(views):
    views = views.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: contrastive_loss(v, 0.3), (views,))
    assert torch.autograd.gradcheck(lambda v: supervised_loss(v, LABELS, 0.3), (views,))


def test_very_small_temperatures_give_finite_losses(views):
    assert contrastive_loss(views.float(), 0.001).isfinite()
    assert supervised_loss(views.float(), LABELS, 0.001).isfinite()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": 0},
        {"supervised_temperature": -1},
        {"supervised_weight": 1.5},
        {"temperature": 11},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        from_dict(LossSettings, bad)
