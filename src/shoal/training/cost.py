"""What a training will take on this machine: a few images through the networks, and the time of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.device import seconds_of
from shoal.distributed import world_size
from shoal.encoders.embed import autocast, to_device
from shoal.training.data import TrainingData
from shoal.training.epoch_draws import views_to_pool
from shoal.training.model import Model
from shoal.training.settings import TrainSettings
from shoal.training.tokens import trunk_tokens
from shoal.training.views import draw_views, make_views

N_TIMED = 16
"""Images that are timed on a CPU, whose time grows with them; a GPU is given a whole batch."""

BACKWARD = 3
"""A forward and a backward pass together take about this many forward passes."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How much there is to do, and the seconds that one of each takes."""

    n_views: int
    """Images and views that the trunk looks at before the first step."""
    view_s: float
    n_steps: int
    step_s: float
    """With its share of what else an epoch takes."""
    n_epochs: int
    judging_s: float = 0.0
    """What judging a trial takes."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.n_views * self.view_s + self.steps_s + self.judging_s

    @property
    def steps_s(self) -> float:
        """The steps alone."""
        return self.n_steps * self.step_s

    def as_measured(self, epochs_s: Sequence[float]) -> "Cost":
        """The same with what a step has taken in epochs of so many seconds."""
        if not epochs_s or not self.n_steps:
            return self
        return replace(self, step_s=sum(epochs_s) / len(epochs_s) * self.n_epochs / self.n_steps)


def measure_cost(data: TrainingData, model: Model, settings: TrainSettings, *, n_done: int = 0) -> Cost:
    """Time a few images through the trunk and the model, forward and backward; `n_done` epochs are done already.

    The model gets gradients, which are taken away again. What a loss, a bank or a validation takes is not counted.
    """
    n_views = model.n_views
    size = n_views * settings.batch_size
    n_timed = min(len(data.pixels), size if model.device.type == "cuda" else N_TIMED)
    view_s, step_s = _time_networks(to_device(data.pixels[:n_timed], model.device), model, settings)
    n_epochs, n_steps = settings.epochs - n_done, len(data.training) // settings.batch_size
    n_rows = 0 if model.reads_images else len(data.pixels) // world_size()
    if settings.views.pool is None or model.reads_images:
        step_s += view_s
    elif n_epochs:
        n_rows += len(views_to_pool(data.pooled_labels, data.training, settings, n_views))
    bank_s = len(data.pixels) * step_s / BACKWARD / world_size()  # every epoch embeds every image once
    return Cost(
        n_views=n_rows,
        view_s=view_s,
        n_steps=n_epochs * n_steps,
        step_s=size * step_s / world_size() + bank_s / max(1, n_steps),
        n_epochs=n_epochs,
    )


def _time_networks(pixels: Tensor, model: Model, settings: TrainSettings) -> tuple[float, float]:
    """Seconds for a view up to the model's input, and for that through the model, forward and backward."""
    encoder = model.encoder
    view_draws = draw_views(len(pixels), torch.Generator().manual_seed(0)).to(encoder.device)
    rows = torch.arange(len(pixels), device=encoder.device)

    def run_trunk() -> Tensor:
        views = make_views(pixels, rows, view_draws, encoder, settings.views)
        return views if model.reads_images else trunk_tokens(views, encoder)

    inputs = run_trunk().clone().float()  # no longer of inference mode

    def step() -> None:
        with autocast(encoder.device):
            loss = sum(output.float().square().sum() for output in model(inputs).values())
        assert isinstance(loss, Tensor)
        torch.autograd.backward(loss)
        model.zero_grad(set_to_none=True)

    return seconds_of(run_trunk, encoder.device) / len(pixels), seconds_of(step, encoder.device) / len(pixels)
