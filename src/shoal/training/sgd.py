"""SGD with momentum and weight decay, to the bits of `torch.optim.SGD`, without what that loads.

Any optimizer of torch loads torch's compiler when it is made, which takes seconds and is used by nothing here. This one
has the part of its interface that training and checkpoints use.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Sgd:
    """Groups of parameters, each a dict with 'params' and its own values where these differ from the others'."""

    def __init__(
        self,
        groups: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        given: list[Any] = list(groups)
        usual: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.param_groups = [
            usual | group
            for group in (given if given and isinstance(given[0], dict) else [{"params": given}])
        ]
        self.state: dict[Tensor, dict[str, Any]] = {}

    @property
    def _parameters(self) -> list[Tensor]:
        return [value for group in self.param_groups for value in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient: v ← m·v + g + d·w, w ← w - lr·v; v begins as g + d·w."""
        for group in self.param_groups:
            moved = [value for value in group["params"] if value.grad is not None]
            if not moved:
                continue
            steps: list[Tensor] = [value.grad for value in moved]
            if group["weight_decay"] != 0:
                steps = list(torch._foreach_add(steps, moved, alpha=group["weight_decay"]))
            if group["momentum"] != 0:
                steps = self._with_momentum(moved, steps, group["momentum"])
            torch._foreach_add_(moved, steps, alpha=-group["lr"])

    def _with_momentum(
        self, moved: list[Tensor], steps: list[Tensor], momentum: float
    ) -> list[Tensor]:
        """The velocity of each parameter, which it keeps."""
        known = [
            (value, step) for value, step in zip(moved, steps, strict=True) if value in self.state
        ]
        for value, step in zip(moved, steps, strict=True):
            if value not in self.state:
                self.state[value] = {"momentum_buffer": step.detach().clone()}
        if known:
            velocities = [self.state[value]["momentum_buffer"] for value, _ in known]
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, [step for _, step in known])
        return [self.state[value]["momentum_buffer"] for value in moved]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for value in self._parameters:
            value.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, parameters by their position, as torch's optimizers have it."""
        position = {value: at for at, value in enumerate(self._parameters)}
        groups = [
            {**group, "params": [position[value] for value in group["params"]]}
            for group in self.param_groups
        ]
        return {
            "state": {position[value]: kept for value, kept in self.state.items()},
            "param_groups": groups,
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave."""
        for group, values in zip(self.param_groups, kept["param_groups"], strict=True):
            group.update({name: value for name, value in values.items() if name != "params"})
        parameters = self._parameters
        self.state = {
            parameters[at]: {
                name: torch.as_tensor(value).to(parameters[at]).clone()
                for name, value in buffers.items()
            }
            for at, buffers in kept["state"].items()
        }


Optimizer = Sgd | torch.optim.Optimizer
"""What takes the steps of a training."""
