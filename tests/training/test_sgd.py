"""Our SGD against torch's: the same bits, and nothing loaded that takes seconds."""

import subprocess
import sys

import pytest
import torch

from shoal.training.sgd import Sgd


def parameters(device: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (5,), (2, 2, 3, 3), (7,)]
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes
    ]


def groups(values: list[torch.nn.Parameter], kind: str) -> list:
    own = {"params": values[1::2], "weight_decay": 0.0, "lr_scale": 3.0}
    return values if kind == "one group" else [{"params": values[::2]}, own]


def set_gradients(values: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(10 + step)
    for position, value in enumerate(values):
        gradient = torch.randn(value.shape, generator=generator).to(value.device)
        value.grad = (
            None if (position, step) in ((1, 0), (2, 3)) else gradient
        )  # one begins late, one is left out once


@pytest.mark.parametrize("kind", ["one group", "two groups"])
@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.9, 5e-4), (0.9, 0.0), (0.0, 0.1), (0.0, 0.0)]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_step_has_the_bits_of_torchs(
    device: str, momentum: float, weight_decay: float, kind: str
) -> None:
    how = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    ours = parameters(device)
    theirs = parameters(device)
    made = Sgd(groups(ours, kind), **how), torch.optim.SGD(groups(theirs, kind), **how)
    for step in range(6):
        for values, optimizer in zip((ours, theirs), made, strict=True):
            set_gradients(values, step)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step) * group.get("lr_scale", 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert all(value.grad is None for value in ours)
    kept, its = (optimizer.state_dict() for optimizer in made)
    assert [group["params"] for group in kept["param_groups"]] == [
        group["params"] for group in its["param_groups"]
    ]
    buffers = {
        at: one["momentum_buffer"]
        for at, one in its["state"].items()
        if one.get("momentum_buffer") is not None
    }
    assert {at: one["momentum_buffer"].tolist() for at, one in kept["state"].items()} == {
        at: one.tolist() for at, one in buffers.items()
    }


def test_what_it_remembers_is_put_back() -> None:
    how = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    ours = parameters("cpu")
    others = parameters("cpu")
    first = Sgd(groups(ours, "two groups"), **how)
    second = Sgd(groups(others, "two groups"), **how)
    for step in range(3):
        set_gradients(ours, step)
        first.step()
    first.param_groups[1]["momentum"] = 0.5
    for mine, value in zip(others, ours, strict=True):
        mine.data.copy_(value)
    second.load_state_dict(first.state_dict())
    for values, optimizer in ((ours, first), (others, second)):
        set_gradients(values, 4)
        optimizer.step()
    assert second.param_groups[1]["momentum"] == 0.5
    assert all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


@pytest.mark.slow
def test_training_loads_no_compiler() -> None:
    program = """
import sys
import torch
from shoal.training.sgd import Sgd
import shoal.training.trainer
value = torch.nn.Parameter(torch.ones(2))
optimizer = Sgd([value], lr=0.1, momentum=0.9, weight_decay=0.1)
value.square().sum().backward()
optimizer.step()
optimizer.zero_grad()
print(sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor")))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
