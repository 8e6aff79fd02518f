"""Sums of an epoch's losses."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from shoal.errors import ShoalError


class Totals:
    """Sums of an epoch's losses, on the device: nothing is read before the epoch's end, so no step waits."""

    def __init__(self, device: torch.device) -> None:
        self.sums: dict[str, Tensor] = {}
        self.n_steps = 0
        self.first_bad = torch.tensor(math.inf, device=device)

    def add(self, step: int, losses: dict[str, Tensor]) -> None:
        """Add a step's values; the first step with a loss, or a gradient, that is no number is remembered."""
        self.n_steps += 1
        # A gradient that overflows leaves no trace in its own step's loss, and in the epoch's last step in none.
        is_finite = (losses["loss"] + losses.get("gradient", losses["loss"])).isfinite()
        self.first_bad = torch.where(is_finite, self.first_bad, self.first_bad.clamp_max(step))
        for name, value in losses.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def means(self) -> dict[str, float]:
        """The mean of each value over the steps."""
        return {name: float(value) / self.n_steps for name, value in self.sums.items()}

    def check_weights(self, weights: Iterable[Tensor]) -> None:
        """Blame the last step where it has left weights that are no numbers: no later loss tells of them."""
        is_finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
        self.first_bad = torch.where(is_finite, self.first_bad, self.first_bad.clamp_max(self.n_steps - 1))

    def check_finite(self, epoch: int, lr: float) -> None:
        """Stop a run whose loss or gradient was infinite or no number."""
        if bool(self.first_bad.isfinite()):
            raise ShoalError(
                f"epoch {epoch}, step {int(self.first_bad) + 1}: the loss or its gradient is not a finite number "
                f"(lr {lr:.4g}); lower lr, raise the temperature or bound training.max_gradient and start over (shoal "
                "discover: --force), or check the images: resuming would take the same settings to the same step"
            )
