"""SGD with momentum and weight decay, to the bits of `torch.optim.SGD`, without what that loads.

Any optimizer of torch loads torch's compiler when it is made, which takes seconds and is used by
nothing here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Sgd:
    """Moves parameters along their gradients; `lr` is set anew before each epoch."""

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
        """Move every parameter that has a gradient: v ← m·v + g + d·w, w ← w - lr·v."""
        for decay in set(self.decays):
            weights = []
            gradients = []
            velocities = []
            for value, own, velocity in zip(
                self.parameters, self.decays, self.velocities, strict=True
            ):
                if own == decay and value.grad is not None:
                    weights.append(value)
                    gradients.append(value.grad)
                    velocities.append(velocity)
            if weights:
                torch._foreach_mul_(velocities, self.momentum)
                torch._foreach_add_(velocities, torch._foreach_add(gradients, weights, alpha=decay))
                torch._foreach_add_(weights, velocities, alpha=-self.lr)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for value in self.parameters:
            value.grad = None

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the velocities by the position of their parameters, for a checkpoint."""
        return {str(position): value for position, value in enumerate(self.velocities)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `saved_tensors` returned."""
        for position, velocity in tensors.items():
            self.velocities[int(position)].copy_(velocity)
