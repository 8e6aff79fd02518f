"""The trainer, which trains a model on a task, epoch by epoch, and its optimizer.

Several processes share a batch: each runs the networks on its share of the images, and the outputs
are gathered. Every process then computes the whole loss, backpropagates through its own share, and
the gradients are summed, so the result equals that of one process up to rounding.

SGD is bit-identical to `torch.optim.SGD`. Constructing any optimizer of torch imports torch's
compiler, which takes seconds and is not used here.

Shapes: N images, n of them for training, B per batch, b of them in this process, D dimensions of
an embedding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import gather_rows, is_started, shard, sum_over_processes
from shoal.encoders.vision import autocast
from shoal.errors import Diverged
from shoal.progress import Progress
from shoal.settings import Plain
from shoal.training.inputs import (
    Task,
    pool_views,
    resident,
    take,
)
from shoal.training.model import Batch, Epoch, Model, Tensors, consecutive_labels
from shoal.training.sampling import EPOCH, OBJECTIVE, POOL, Sampler, make_views
from shoal.training.train_settings import TrainSettings
from shoal.training.validation import Validation, validate

# Prefix of the names of the optimizer's tensors in a checkpoint
OPTIMIZER = "optimizer/"

# Takes rows (B,) and the parameters of their views (2B, 7); returns losses
Step = Callable[[Tensor, Tensor], Tensors]

# Fewest steps in an epoch for which recording pays off; it takes as long as two steps
MIN_STEPS = 8


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


def is_recordable(model: Model) -> bool:
    """Return whether a step of a model only launches kernels, given a pool of views on the GPU."""
    return model.device.type == "cuda" and model.is_recordable and not is_started()


class RecordedStep:
    """A recorded step for inputs of one shape; it reads the current values of all other tensors.

    `previous` is the recording that this one replaces, whose memory and stream it reuses.
    """

    def __init__(
        self,
        step: Step,
        rows: Tensor,
        view_parameters: Tensor,
        previous: "RecordedStep | None" = None,
    ) -> None:
        self._rows = rows.clone()
        self._view_parameters = view_parameters.clone()
        self._graph = torch.cuda.CUDAGraph()
        if previous is None:
            # Recording cannot reuse the memory that earlier steps have freed.
            torch.cuda.empty_cache()
            self.pool: Any = torch.cuda.graph_pool_handle()
            self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        else:
            self.pool = previous.pool
            self.stream = previous.stream
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self._graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self._losses = step(self._rows, self._view_parameters)
            except BaseException:  # also Ctrl-C, after which writing the result needs the GPU
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        current.wait_stream(self.stream)

    def __call__(self, rows: Tensor, view_parameters: Tensor) -> Tensors:
        self._rows.copy_(rows)
        self._view_parameters.copy_(view_parameters)
        self._graph.replay()
        return {name: value.clone() for name, value in self._losses.items()}


class Trainer:
    """Trains a model on a task, and caches tokens and views of its images between epochs."""

    def __init__(self, task: Task, model: Model, settings: TrainSettings) -> None:
        self.task = task
        self.model = model
        self.settings = settings
        self.device = model.device
        self.parameters = [value for value in model.parameters() if value.requires_grad]
        self.optimizer = Sgd(
            self.parameters,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            decays_vectors=model.decays_vectors,
        )
        self.training_rows = torch.from_numpy(task.training).to(self.device)  # (n,) of the N rows
        labels = consecutive_labels(task.training_labels)
        self.labels = torch.from_numpy(labels).to(self.device)  # (n,)
        self.sampler = Sampler(task.training_labels, settings)
        self._embeddings: Tensor | None = None
        self._recorded: RecordedStep | None = None

    def prepare(self, *, is_finished: bool = False) -> None:
        """Run the trunk on all images and views that the task has not cached; must be called before
        training or embedding.

        A finished run needs no views.
        """
        task = self.task
        model = self.model
        self.tokens = task.tokens or model.inputs_of(task.pixels)
        if task.validation_set is not None:
            self.validation_inputs = model.inputs_of(task.validation_set.pixels)
        if is_finished:
            return
        self.pixels = resident(task.pixels, self.device)
        self.pool = task.pool
        if task.pool is None and self.settings.views.pool is not None and not model.reads_images:
            self.pool = pool_views(
                self.pixels,
                model.encoder,
                self.settings.views,
                generator=self.sampler.generator(POOL),
                only=self.sampler.pooled_views(task.training),
            )

    def run_epoch(self, epoch: int, progress: Progress | None = None) -> Plain:
        """Train on every batch of an epoch, counted from 0; return its row of metrics."""
        lr = self.model.lr_at(epoch, self.settings)
        row: Plain = {"epoch": epoch + 1, "lr": lr, **self.begin_epoch(epoch)}
        self.optimizer.lr = lr
        # All random choices of an epoch, in two small tables that are copied to the device once.
        batches, view_parameters = (table.to(self.device) for table in self.sampler.steps(epoch))
        generator = self.sampler.generator(OBJECTIVE, epoch)
        step: Step = partial(self.step, epoch=epoch, generator=generator)
        is_on_device = self.pool is not None and self.pool.tokens.device.type == self.device.type
        is_recorded = is_on_device and len(batches) >= MIN_STEPS and is_recordable(self.model)
        losses = []
        report = progress or (lambda done, total: None)
        # Report now, so that the memory of the first step is not attributed to the previous stage.
        report(0, len(batches))
        for number, inputs in enumerate(zip(batches, view_parameters, strict=True)):
            # Record the second step: the first one allocates memory, which cannot be recorded.
            if number == 1 and is_recorded:
                step = self._record(step, *inputs)
            losses.append(step(*inputs))
            report(number + 1, len(batches))
        # Losses are read only now, because reading them in a step would wait for the device.
        for name in losses[0]:
            row[name] = float(sum(terms[name] for terms in losses)) / len(losses)
        self._check_finite(row)
        return row

    def _record(self, step: Step, rows: Tensor, view_parameters: Tensor) -> Step:
        """Return the step as a CUDA graph; unchanged if there is not enough memory for the
        graph."""
        try:
            self._recorded = RecordedStep(step, rows, view_parameters, self._recorded)
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad()  # gradients of the aborted recording hold no values
            return step
        return self._recorded

    def _check_finite(self, row: Plain) -> None:
        """Raise Diverged if a loss or gradient of the epoch, or a weight after it, is infinite or
        NaN."""
        weights = torch.stack([value.isfinite().all() for value in self.parameters])
        if not (math.isfinite(row["loss"] + row["gradient"]) and weights.all()):
            raise Diverged(
                f"epoch {row['epoch']}: the loss or its gradient is not finite "
                f"(lr {row['lr']:.4g}); lower lr, raise the temperature or set "
                "training.max_gradient and start over (shoal discover: --force), or check the "
                "images; resuming would fail at the same epoch"
            )

    def begin_epoch(self, epoch: int) -> dict[str, float]:
        return self.model.begin_epoch(
            Epoch(
                number=epoch,
                labels=self.labels,
                embed=lambda: self.embed_all()[self.training_rows],
                embed_views=lambda: self._embed_random_views(epoch),
                generator=self.sampler.generator(EPOCH, epoch),
            )
        )

    def embed_all(self) -> Tensor:
        """Return embeddings (N, D) of all images with the current weights, cached until the next
        step."""
        if self._embeddings is None:
            self._embeddings = self.tokens.embed(self.model.represent, self.device)
        return self._embeddings

    def forget_embeddings(self) -> None:
        self._embeddings = None

    def validate(self, rule: str) -> Validation:
        """Score the current weights on the validation images.

        A model with a classifier is scored by its predictions, any other by Ward's tree of the
        embeddings.
        """
        task = self.task
        if task.validation_set is not None:
            embeddings = self.validation_inputs.embed(self.model.represent, self.device)
            return task.validation_set.score(embeddings, self.predict(embeddings), task.n_clusters)
        if task.validation is None:
            return Validation(accuracy=float("nan"), n_clusters=task.n_clusters)
        embeddings = self.embed_all()[torch.from_numpy(task.validation).to(self.device)]
        return validate(
            embeddings,
            task.labels[task.validation],
            predicted=self.predict(embeddings),
            n_clusters=task.n_clusters,
            rule=rule,
        )

    def predict(self, embeddings: Tensor) -> Ints | None:
        with torch.inference_mode():
            clusters = self.model.predict(embeddings)
        return None if clusters is None else clusters.cpu().numpy()

    def step(
        self, rows: Tensor, view_parameters: Tensor, epoch: int, generator: torch.Generator
    ) -> Tensors:
        """Update the weights on a batch (B,); return the loss, its terms and the norm of its
        gradient."""
        local = shard(len(rows))
        images = rows[local].repeat(2)  # (2b,)
        views = [view[local] for view in view_parameters.chunk(2)]
        view_parameters = torch.cat(views)  # (2b, 7), see sample_view_parameters
        inputs = self.inputs(images, view_parameters)
        with autocast(self.device):
            outputs = self.model.forward(inputs)
        batch = Batch(
            images=images,
            inputs=inputs,
            outputs=outputs,
            labels=self.labels[rows].repeat(2),
            epoch=epoch,
            generator=generator,
        )
        losses = self.model.loss(batch)
        torch.autograd.backward(losses["loss"])
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        add_over_processes(gradients)
        losses["gradient"] = clip_gradients(gradients, self.settings.max_gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.forget_embeddings()
        self.model.after_step(batch)
        return {name: value.detach() for name, value in losses.items()}

    def inputs(self, images: Tensor, view_parameters: Tensor) -> Tensor:
        """Return the trunk's tokens (M, T, …) of views of training images (M,), or the views
        themselves if the model reads images."""
        images = self.training_rows[images]
        if self.pool is not None:
            return self.pool.take(images, view_parameters)
        source, rows = take(self.pixels, images, self.device)
        encoder = self.model.encoder
        views = make_views(source, rows, view_parameters, encoder, self.settings.views)
        if self.model.reads_images:
            return views
        with autocast(self.device):
            return encoder.run_trunk(views)

    @torch.no_grad()
    def _embed_random_views(self, epoch: int) -> Tensor:
        """Return embeddings (2n, D) of two views of every training image, first all of view 1, then
        all of view 2.

        Each process embeds a share of every batch, and all return the same.
        """
        parts = []
        for rows, view_parameters in self.sampler.two_views(epoch):
            local = shard(len(rows))
            images = rows[local].to(self.device)
            with autocast(self.device):
                inputs = self.inputs(images, view_parameters[local].to(self.device))
                parts.append(gather_rows(self.model.represent(inputs)))
        return torch.cat(parts)


def add_over_processes(gradients: list[Tensor]) -> None:
    """Sum gradients over all processes in place, with one collective call."""
    if not is_started():
        return
    flat = sum_over_processes(torch.cat([g.flatten() for g in gradients]))
    sums = torch.split(flat, [g.numel() for g in gradients])
    for gradient, total in zip(gradients, sums, strict=True):
        gradient.copy_(total.view_as(gradient))


def clip_gradients(gradients: list[Tensor], max_norm: float | None) -> Tensor:
    """Clip the total norm of gradients to `max_norm` in place; return the norm before clipping."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, (max_norm / norm).clamp_max(1))
    return norm
