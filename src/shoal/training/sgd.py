"""SGD with momentum and weight decay, bit-identical to `torch.optim.SGD`.

Constructing any optimizer of torch imports torch's compiler, which takes seconds and is not used
here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shoal.training.model import Tensors

# Prefix of the names of the optimizer's tensors in a checkpoint
OPTIMIZER = "optimizer/"


class Sgd:
    """Updates parameters by their gradients; the trainer sets `lr` before each epoch."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        momentum: float,
        weight_decay: float,
        decays_vectors: bool = True,
    ) -> None:
        self.lr = 0.0
        self.momentum = momentum
        decayed = [value for value in parameters if value.ndim > 1 or decays_vectors]
        undecayed = [value for value in parameters if value.ndim <= 1 and not decays_vectors]
        self.groups = [(weight_decay, decayed), (0.0, undecayed)]
        self.velocities = {value: torch.zeros_like(value) for value in (*decayed, *undecayed)}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient: v ← m·v + g + d·w, w ← w - lr·v."""
        for decay, parameters in self.groups:
            weights = [value for value in parameters if value.grad is not None]
            gradients = [value.grad for value in parameters if value.grad is not None]
            if weights:
                velocities = [self.velocities[value] for value in weights]
                torch._foreach_mul_(velocities, self.momentum)
                decayed = torch._foreach_add(gradients, weights, alpha=decay)
                torch._foreach_add_(velocities, decayed)
                torch._foreach_add_(weights, velocities, alpha=-self.lr)

    def zero_grad(self) -> None:
        for value in self.velocities:
            value.grad = None

    def saved_tensors(self) -> Tensors:
        """Return the velocities for a checkpoint, by the position of their parameters."""
        velocities = enumerate(self.velocities.values())
        return {f"{OPTIMIZER}{position}": velocity for position, velocity in velocities}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        for name, velocity in self.saved_tensors().items():
            velocity.copy_(tensors[name])
