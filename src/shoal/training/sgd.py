"""SGD with momentum and weight decay, to the bits of `torch.optim.SGD`, without what that loads.

Any optimizer of torch loads torch's compiler when it is made, which takes seconds and is used by nothing here.
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
        self.groups = [(parameters, weight_decay), (undecayed, 0.0)]
        self.velocities: dict[Tensor, Tensor] = {}

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, in a fixed order."""
        return [value for parameters, _ in self.groups for value in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient: v ← m·v + g + d·w, w ← w - lr·v; v begins as g + d·w."""
        for parameters, weight_decay in self.groups:
            moved = [value for value in parameters if value.grad is not None]
            if not moved:
                continue
            steps: list[Tensor] = [value.grad for value in moved if value.grad is not None]
            if weight_decay != 0:
                steps = list(torch._foreach_add(steps, moved, alpha=weight_decay))
            if self.momentum != 0:
                steps = self._with_momentum(moved, steps)
            torch._foreach_add_(moved, steps, alpha=-self.lr)

    def _with_momentum(self, moved: list[Tensor], steps: list[Tensor]) -> list[Tensor]:
        """Update and return the velocity of each parameter."""
        old_velocities = []
        old_steps = []
        for value, step in zip(moved, steps, strict=True):
            if value in self.velocities:
                old_velocities.append(self.velocities[value])
                old_steps.append(step)
            else:
                self.velocities[value] = step.detach().clone()
        if old_velocities:
            torch._foreach_mul_(old_velocities, self.momentum)
            torch._foreach_add_(old_velocities, old_steps)
        return [self.velocities[value] for value in moved]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for value in self.parameters:
            value.grad = None

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the velocities by the position of their parameters, for a checkpoint."""
        return {
            str(position): self.velocities[value]
            for position, value in enumerate(self.parameters)
            if value in self.velocities
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `saved_tensors` returned."""
        parameters = self.parameters
        for position, velocity in tensors.items():
            value = parameters[int(position)]
            self.velocities[value] = velocity.to(value).clone()
