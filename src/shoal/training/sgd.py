"""SGD with momentum and weight decay, bit-identical to `torch.optim.SGD`.

Constructing any optimizer of torch imports torch's compiler, which takes seconds and is not used
here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Sgd:
    """Updates parameters by their gradients; the trainer sets `lr` before each epoch."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        momentum: float,
        weight_decay: float,
        undecayed: Sequence[Tensor] = (),
    ) -> None:
        self.lr = 0.0
        self.momentum = momentum
        self.parameters = [*parameters, *undecayed]
        self.decays = [weight_decay] * len(parameters) + [0.0] * len(undecayed)
        self.velocities = [torch.zeros_like(value) for value in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient: v ← m·v + g + d·w, w ← w - lr·v."""
        everything = list(zip(self.parameters, self.decays, self.velocities, strict=True))
        for group_decay in set(self.decays):
            weights = []
            gradients = []
            velocities = []
            for value, decay, velocity in everything:
                if decay == group_decay and value.grad is not None:
                    weights.append(value)
                    gradients.append(value.grad)
                    velocities.append(velocity)
            if weights:
                torch._foreach_mul_(velocities, self.momentum)
                decayed = torch._foreach_add(gradients, weights, alpha=group_decay)
                torch._foreach_add_(velocities, decayed)
                torch._foreach_add_(weights, velocities, alpha=-self.lr)

    def zero_grad(self) -> None:
        """Delete the gradients."""
        for value in self.parameters:
            value.grad = None

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the velocities by the position of their parameters, for a checkpoint."""
        return {str(position): value for position, value in enumerate(self.velocities)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `saved_tensors` returned."""
        for position, velocity in tensors.items():
            self.velocities[int(position)].copy_(velocity)
