import pytest
import torch

from shoal.errors import ShoalError
from shoal.training.totals import Totals

CPU = torch.device("cpu")


def test_means_are_over_the_steps():
    totals = Totals(CPU)
    for step, loss in enumerate([1.0, 2.0, 6.0]):
        totals.add(step, {"loss": torch.tensor(loss), "gradient": torch.tensor(1.0)})
    assert totals.means() == {"loss": 3.0, "gradient": 1.0}
    totals.check_finite(epoch=1, lr=0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_first_step_with_a_loss_that_is_no_number_is_named(bad):
    totals = Totals(CPU)
    for step, loss in enumerate([1.0, bad, 2.0, bad]):
        totals.add(step, {"loss": torch.tensor(loss)})
    where = r"epoch 7, step 2: the loss or its gradient is not a finite number \(lr 0\.05\); "
    advice = (
        "lower lr, raise the temperature or bound training.max_gradient and start over .*--force.*: resuming would take"
    )
    with pytest.raises(ShoalError, match=where + advice):
        totals.check_finite(epoch=7, lr=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_overflows_in_the_last_step_is_noticed(bad):
    """The weights are no numbers from then on, but no loss of this epoch shows it."""
    totals = Totals(CPU)
    for step, gradient in enumerate([1.0, 1.0, bad]):
        totals.add(step, {"loss": torch.tensor(1.0), "gradient": torch.tensor(gradient)})
    with pytest.raises(ShoalError, match="epoch 1, step 3: the loss or its gradient"):
        totals.check_finite(epoch=1, lr=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_the_last_step_spoiled_are_noticed(bad):
    totals = Totals(CPU)
    for step in range(3):
        totals.add(step, {"loss": torch.tensor(1.0)})
    totals.check_weights([torch.ones(2), torch.ones(3)])
    totals.check_finite(epoch=1, lr=0.1)
    totals.check_weights([torch.ones(2), torch.tensor([1.0, bad])])
    with pytest.raises(ShoalError, match="epoch 1, step 3: "):
        totals.check_finite(epoch=1, lr=0.1)
