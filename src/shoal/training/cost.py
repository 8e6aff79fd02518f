"""What a training will take on this machine: a few images through the networks, and the time of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.device import seconds_of
from shoal.distributed import n_own, world_size
from shoal.encoders.embed import autocast, to_device
from shoal.training.data import TrainingData
from shoal.training.epoch_draws import views_to_pool
from shoal.training.model import Batch, Epoch, Model, numbered_labels
from shoal.training.recorded_step import FEWEST, RecordedStep, is_recordable
from shoal.training.tokens import trunk_tokens
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import Trainer
from shoal.training.views import draw_views, make_views

N_TIMED = 16
"""Images that are timed on a CPU, whose time grows with them; a GPU is given a whole batch."""

N_BANK = 1024
"""Embeddings that the loss of a timed step looks at, at most."""

BACKWARD = 3
"""A forward and a backward pass together take about this many forward passes."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How much there is to do, and the seconds that one of each takes."""

    n_views: int
    """Images and views that the trunk looks at in this process before the first step."""
    view_s: float
    n_epochs: int
    """Epochs that are left."""
    steps_per_epoch: int
    step_s: float
    """With its share of what else an epoch takes."""
    n_done: int = 0
    """Epochs that an interrupted training has done."""
    judging_s: float = 0.0
    """What judging a trial takes."""

    @property
    def seconds(self) -> float:
        """The seconds of all of it."""
        return self.n_views * self.view_s + self.steps_s + self.judging_s

    @property
    def n_steps(self) -> int:
        """Steps that are left."""
        return self.n_epochs * self.steps_per_epoch

    @property
    def steps_s(self) -> float:
        """The steps alone."""
        return self.n_steps * self.step_s

    def as_measured(self, epochs_s: Sequence[float]) -> "Cost":
        """The same with what a step has taken in epochs of so many seconds."""
        if not epochs_s or not self.steps_per_epoch:
            return self
        return replace(self, step_s=sum(epochs_s) / len(epochs_s) / self.steps_per_epoch)

    def of_next(self, share: float, n_done: int) -> "Cost":
        """What a training after this one takes, on the same views: a share of its epochs, of which so many are done."""
        n_epochs = max(1, round(share * (self.n_epochs + self.n_done)))
        return replace(
            self, n_views=0, n_epochs=max(0, n_epochs - n_done), n_done=n_done, judging_s=0.0
        )


def measure_cost(
    data: TrainingData,
    model: Model,
    settings: TrainSettings,
    *,
    n_done: int = 0,
    needs_pool: bool = False,
) -> Cost:
    """Time a few images through the trunk, and a step of training; `n_done` epochs are done already.

    The model has then begun an epoch and taken steps: it is made for this and not trained. What a validation takes, and
    what a method does once an epoch beside embedding, is not counted. The pool of views is counted where epochs are
    left, or where another training needs it.
    """
    n_views = model.n_views
    size = n_views * settings.batch_size
    n_timed = min(len(data.pixels), size if model.device.type == "cuda" else N_TIMED)
    view_s, pass_s, rest_s = _time_networks(
        to_device(data.pixels[:n_timed], model.device), data, model, settings
    )
    n_epochs = settings.epochs - n_done
    n_steps = len(data.training) // settings.batch_size
    n_rows = 0 if model.reads_images or data.tokens is not None else n_own(len(data.pixels))
    if settings.views.pool is None or model.reads_images:
        pass_s += view_s
    elif n_epochs or needs_pool:
        n_rows += n_own(len(views_to_pool(data.pooled_labels, data.training, settings, n_views)))
    bank_s = (
        len(data.pixels) * pass_s / BACKWARD / world_size()
    )  # every epoch embeds every image once
    return Cost(
        n_views=n_rows,
        view_s=view_s,
        n_epochs=n_epochs,
        steps_per_epoch=n_steps,
        step_s=size * pass_s / world_size() + rest_s + bank_s / max(1, n_steps),
        n_done=n_done,
    )


def _time_networks(
    pixels: Tensor, data: TrainingData, model: Model, settings: TrainSettings
) -> tuple[float, float, float]:
    """Seconds for a view up to the model's input, for that through the model and back, and for the rest of a step.

    The rest is the loss of a whole batch and the optimizer, most of a step where a GPU waits for Python; none where
    steps are recorded, whose time is all counted for the views.
    """
    encoder = model.encoder
    view_draws = draw_views(len(pixels), torch.Generator().manual_seed(0)).to(encoder.device)
    rows = torch.arange(len(pixels), device=encoder.device)

    def run_trunk() -> Tensor:
        views = make_views(pixels, rows, view_draws, encoder, settings.views)
        return views if model.reads_images else trunk_tokens(views, encoder)

    inputs = run_trunk().clone().float()  # no longer of inference mode

    def run_model() -> dict[str, Tensor]:
        with autocast(encoder.device):
            outputs: dict[str, Tensor] = model(inputs)
        return outputs

    def pass_both_ways() -> None:
        loss = sum(output.float().square().sum() for output in run_model().values())
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad(set_to_none=True)

    view_s = seconds_of(run_trunk, encoder.device)
    # A loss would wait for the other processes, which do not measure.
    step = _whole_step(inputs, run_model, data, model, settings) if world_size() == 1 else None
    n_steps = len(data.training) // settings.batch_size
    is_pooled = settings.views.pool is not None and n_steps >= FEWEST
    if step is not None and is_pooled and is_recordable(model):
        step()
        recorded = RecordedStep(lambda *_: step(), rows, view_draws)
        pass_s = seconds_of(lambda: recorded(rows, view_draws), encoder.device)
        return view_s / len(pixels), pass_s / (model.n_views * settings.batch_size), 0.0
    pass_s = seconds_of(pass_both_ways, encoder.device)
    rest_s = 0.0 if step is None else max(0.0, seconds_of(step, encoder.device) - pass_s)
    return view_s / len(pixels), pass_s / len(pixels), rest_s


def _whole_step(
    inputs: Tensor,
    run_model: Callable[[], dict[str, Tensor]],
    data: TrainingData,
    model: Model,
    settings: TrainSettings,
) -> Callable[[], dict[str, Tensor]]:
    """A step of training in which the views timed stand for a whole batch, and random rows for embeddings."""
    device = model.device
    n_views = model.n_views
    generator = torch.Generator().manual_seed(0)
    labels = torch.from_numpy(numbered_labels(data.training_labels[:N_BANK])).to(device)
    with torch.no_grad(), autocast(device):
        n_columns = model.represent(inputs[:1]).shape[1]
    embeddings = F.normalize(torch.randn(n_views * len(labels), n_columns, generator=generator)).to(
        device
    )
    model.begin_epoch(
        Epoch(
            number=model.timed_epoch,
            labels=labels,
            embed=lambda: embeddings[: len(labels)],
            embed_views=lambda: embeddings,
            generator=generator,
        )
    )
    images = (torch.arange(settings.batch_size, device=device) % len(labels)).repeat(
        n_views
    )  # (V·B,)
    timed = torch.arange(len(images), device=device) % len(
        inputs
    )  # (V·B,) which of the views stands for each
    trainer = Trainer(data, model, settings)

    def step() -> dict[str, Tensor]:
        outputs = {name: output[timed] for name, output in run_model().items()}
        batch = Batch(
            images=images,
            inputs=inputs[timed],
            outputs=outputs,
            labels=labels[images],
            epoch=model.timed_epoch,
            generator=generator,
            n_views=n_views,
        )
        return trainer.take_step(batch)

    return step
