"""`Sgd` equals `torch.optim.SGD` bit for bit, without importing the compiler of torch."""

import subprocess
import sys

import pytest
import torch

from shoal.training.trainer import Sgd


def parameters(device: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (5,), (2, 2, 3, 3), (7,)]
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes
    ]


def set_gradients(values: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(10 + step)
    for position, value in enumerate(values):
        gradient = torch.randn(value.shape, generator=generator).to(value.device)
        value.grad = (
            None if (position, step) in ((1, 0), (2, 3)) else gradient
        )  # one starts late, one is skipped once


@pytest.mark.parametrize("has_undecayed", [False, True])
@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.9, 5e-4), (0.9, 0.0), (0.0, 0.1), (0.0, 0.0)]
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_step_equals_that_of_torch_bit_for_bit(
    device: str, momentum: float, weight_decay: float, has_undecayed: bool
) -> None:
    ours = parameters(device)
    theirs = parameters(device)
    mine = Sgd(ours, momentum=momentum, weight_decay=weight_decay)
    groups = [{"params": theirs}]
    if has_undecayed:
        mine = Sgd(ours, momentum=momentum, weight_decay=weight_decay, decays_vectors=False)
        groups = [{"params": theirs[::2]}, {"params": theirs[1::2], "weight_decay": 0.0}]
    torchs = torch.optim.SGD(groups, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for step in range(6):
        lr = 0.1 / (1 + step)
        mine.lr = lr
        for group in torchs.param_groups:
            group["lr"] = lr
        for values, optimizer in ((ours, mine), (theirs, torchs)):
            set_gradients(values, step)
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert all(value.grad is None for value in ours)


@pytest.mark.slow
def test_training_does_not_import_the_compiler_of_torch() -> None:
    program = """
import sys
import torch
from shoal.training.trainer import Sgd
import shoal.training.trainer
value = torch.nn.Parameter(torch.ones(2))
optimizer = Sgd([value], momentum=0.9, weight_decay=0.1)
value.square().sum().backward()
optimizer.step()
optimizer.zero_grad()
print(sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor")))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
