"""The trainer: a model, the images, and what is kept of them between epochs.

Several processes share a batch: each runs its images through the networks, embeddings are gathered,
every process computes the whole loss and backs it through its own images, and gradients are added
up, so the result is that of one process, to rounding.

N images, n of them for training, B of a batch, b this process's share of it, V views of each, T
steps of an epoch, D entries of an embedding.
"""

from typing import Any

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import gather_rows, mean_over_processes, shard, world_size
from shoal.encoders.embed import autocast, explain_out_of_memory
from shoal.errors import Diverged
from shoal.progress import Progress
from shoal.settings import to_dict
from shoal.training.epoch_draws import EPOCH, OBJECTIVE, EpochDraws
from shoal.training.model import Batch, Epoch, Model, numbered_labels
from shoal.training.recorded_step import FEWEST, RecordedStep, Step, is_recordable
from shoal.training.task import Task
from shoal.training.tokens import ImageInputs, TokenCache, resident, take
from shoal.training.train_settings import TrainSettings
from shoal.training.validation import Validation, score_clusters, validate
from shoal.training.view_pool import ViewPool, pool_views
from shoal.training.views import make_views


class Trainer:
    """The model, the images and what is kept of them between epochs."""

    tokens: TokenCache | ImageInputs
    judge_tokens: TokenCache | ImageInputs

    def __init__(self, task: Task, model: Model[Any], settings: TrainSettings) -> None:
        self.task = task
        self.model = model
        self.settings = settings
        self.device = model.device
        self.parameters = model.trained_parameters()
        self.optimizer = model.make_optimizer(settings)
        self.training = torch.from_numpy(task.training).to(self.device)  # (n,) rows of N
        labels = numbered_labels(task.training_labels)
        self.labels = torch.from_numpy(labels).to(self.device)  # (n,)
        self.epoch_draws = EpochDraws(task.training_labels, settings, model.n_views)
        self.pixels = task.pixels
        self.pool: ViewPool | None = None
        self._batch_size = f"training.batch_size (now {settings.batch_size})"
        self._embeddings: Tensor | None = None
        self._recorded: RecordedStep | None = None

    def prepare(self, *, is_finished: bool = False) -> None:
        """Run the trunk over the images and views, unless somebody has; comes before anything
        below.

        A run that is finished needs no views.
        """
        task = self.task
        size = 2 * self.settings.batch_size
        if task.tokens is None or self.model.reads_images:
            self.tokens = self.model.inputs_of(task.pixels, batch_size=size)
        else:
            self.tokens = task.tokens
        if task.judge is not None:
            self.judge_tokens = self.model.inputs_of(task.judge.pixels, batch_size=size)
        if is_finished:
            return
        self.pixels = resident(task.pixels, self.device)
        if self.settings.views.pool is None or self.model.reads_images:
            return
        self.pool = task.pool or pool_views(
            self.pixels,
            self.model.encoder,
            self.settings.views,
            generator=self.epoch_draws.for_pool(),
            only=self.epoch_draws.pooled_views(task.training),
            batch_size=size,
        )

    def identity(self) -> dict[str, object]:
        """What must be the same for a run to be resumed."""
        return {
            "training": to_dict(self.settings),
            "method": self.model.identity(),
            "encoder": self.model.encoder.identity(),
            "data": self.task.identity(),
        }

    def run_epoch(self, epoch: int, progress: Progress | None = None) -> dict[str, Any]:
        """Let the model begin the epoch and train on every batch once; the row of metrics says how
        it went."""
        lr = self.model.lr_at(epoch, self.settings)
        row: dict[str, Any] = {"epoch": epoch + 1, "lr": lr}
        row |= self.begin_epoch(epoch)
        self.optimizer.lr = lr
        # All random choices of an epoch in two small tables, moved to the device at once.
        batches, view_draws = (drawn.to(self.device) for drawn in self.epoch_draws.steps(epoch))
        generator = self.epoch_draws.generator(OBJECTIVE, epoch)

        def take_step(rows: Tensor, drawn: Tensor) -> dict[str, Tensor]:
            return self.step(rows, drawn, epoch, generator)

        step: Step = take_step
        is_on_device = self.pool is not None and self.pool.tokens.device.type == self.device.type
        is_recorded = is_on_device and len(batches) >= FEWEST and is_recordable(self.model)
        losses = []
        for at, (rows, drawn) in enumerate(zip(batches, view_draws, strict=True)):
            with explain_out_of_memory(self._batch_size):
                if at == 1 and is_recorded:
                    step = self._record(take_step, rows, drawn)
                losses.append(step(rows, drawn))
            if progress is not None:
                progress(at + 1, len(batches))
        self._check_finite(losses, epoch + 1, lr)
        # Read here and not in a step, which would wait for the device.
        for name in losses[0]:
            row[name] = float(sum(each[name] for each in losses)) / len(losses)
        return row

    def _record(self, step: Step, rows: Tensor, drawn: Tensor) -> Step:
        """The step as a CUDA graph; as it is where there is no memory for one."""
        try:
            self._recorded = RecordedStep(step, rows, drawn, self._recorded)
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad()  # what was recorded of them holds no numbers
            return step
        return self._recorded

    def _check_finite(self, losses: list[dict[str, Tensor]], epoch: int, lr: float) -> None:
        """Stop a run whose loss or gradient was infinite or no number, in any step of an epoch.

        A gradient that overflows leaves no trace in its own step's loss, and in the epoch's last
        step in none: that one is blamed for weights that are no numbers.
        """
        is_finite = torch.stack([(step["loss"] + step["gradient"]).isfinite() for step in losses])
        is_finite[-1] &= torch.stack([value.isfinite().all() for value in self.parameters]).all()
        if not is_finite.all():
            step = int(is_finite.int().argmin()) + 1
            raise Diverged(
                f"epoch {epoch}, step {step}: the loss or its gradient is not a finite number "
                f"(lr {lr:.4g}); lower lr, raise the temperature or bound training.max_gradient "
                "and start over (shoal "
                "discover: --force), or check the images: resuming would take the same settings to "
                "the same step"
            )

    def begin_epoch(self, epoch: int) -> dict[str, float]:
        """Let the model look at the training images, with the networks as they are now; what it
        says of them."""
        return self.model.begin_epoch(
            Epoch(
                number=epoch,
                labels=self.labels,
                embed=lambda: self.embed_all()[self.training],
                embed_views=lambda: self._embed_random_views(epoch),
                generator=self.epoch_draws.generator(EPOCH, epoch),
            )
        )

    def embed_all(self) -> Tensor:
        """(N, D) what images are clustered by, with the networks as they are now; computed once
        between two epochs."""
        if self._embeddings is None:
            self._embeddings = self._embed(self.tokens)
        return self._embeddings

    def _embed(self, tokens: TokenCache | ImageInputs) -> Tensor:
        with explain_out_of_memory(self._batch_size):
            return tokens.embed(self.model.represent, self.device)

    def forget_embeddings(self) -> None:
        """Say that the networks have changed."""
        self._embeddings = None

    def validate(self, rule: str | None = None) -> Validation:
        """Score the networks as they are now on the validation images, or by the judge where there
        is one.

        A model with a classifier is scored by its predictions, any other by Ward's tree of the
        embeddings.
        """
        rows = self.task.validation
        judge = self.task.judge
        n_clusters = self.task.n_clusters
        if judge is not None:
            embeddings = self.model.compact(self._embed(self.judge_tokens))
            predicted = self.predict(embeddings)
            if predicted is None:
                return judge.score(embeddings, n_clusters)
            return judge.score_clusters(predicted)
        if rows is None:
            return Validation(accuracy=float("nan"), n_clusters=n_clusters)
        embeddings = self.model.compact(self.embed_all()[torch.from_numpy(rows).to(self.device)])
        predicted = self.predict(embeddings)
        labels = self.task.labels[rows]
        if predicted is not None:
            return score_clusters(predicted, labels, n_clusters)
        return validate(embeddings, labels, n_clusters=n_clusters, rule=rule)

    def answer(self) -> tuple[Tensor, Ints | None]:
        """Embeddings (N, D) of all images, compact, and their clusters (N,) where the model has a
        classifier."""
        embeddings = self.model.compact(self.embed_all())
        return embeddings, self.predict(embeddings)

    def predict(self, embeddings: Tensor) -> Ints | None:
        """(N,) clusters of unit embeddings (N, D) by the model's classifier; None where it has
        none."""
        with torch.inference_mode():
            clusters = self.model.predict(embeddings)
        return None if clusters is None else clusters.cpu().numpy()

    def step(
        self, rows: Tensor, view_draws: Tensor, epoch: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Move the weights by the loss of a batch of images (B,); the loss, its parts and
        gradient."""
        mine = shard(len(rows))
        n_views = self.model.n_views
        images = rows[mine].repeat(n_views)  # (V·b,)
        view_draws = torch.cat([view[mine] for view in view_draws.chunk(n_views)])  # (V·b, 7)
        inputs = self.inputs(self.training[images], view_draws, n_views)
        with autocast(self.device):
            outputs = self.model.forward(inputs)
        batch = Batch(
            images=images,
            inputs=inputs,
            outputs=outputs,
            labels=self.labels[rows].repeat(n_views),
            epoch=epoch,
            generator=generator,
            n_views=n_views,
        )
        return self.take_step(batch)

    def inputs(self, images: Tensor, view_draws: Tensor, n_views: int = 2) -> Tensor:
        """The trunk's tokens (b, T, …) of views of `images` (b,); or the views, where the model
        reads them."""
        if self.pool is not None:
            return self.pool.take(images, view_draws, n_views)
        source, rows = take(self.pixels, images, self.device)
        # Not inference mode, whose tensors the model's backward could not keep.
        with torch.no_grad():
            encoder = self.model.encoder
            views = make_views(source, rows, view_draws, encoder, self.settings.views)
            if self.model.reads_images:
                return views
            with autocast(self.device):
                return encoder.run_trunk(views)

    def take_step(self, batch: Batch) -> dict[str, Tensor]:
        """Move the weights by the loss of a batch that has gone through the model; the loss, its
        parts and gradient."""
        losses = self.model.loss(batch)
        torch.autograd.backward(losses["loss"])
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        add_over_processes(gradients)
        losses["gradient"] = cut_to_length(gradients, self.settings.max_gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.forget_embeddings()
        with torch.no_grad():
            self.model.after_step(batch)
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def _embed_random_views(self, epoch: int) -> Tensor:
        """(2n, D), view 1 of every training image, then view 2, in every process; each does a share
        of the batches."""
        batches = list(self.epoch_draws.two_views(epoch))
        mine = batches[shard(len(batches))]
        if not mine:  # a process without a batch runs none of its views, to learn how long a row is
            rows, drawn = batches[0]
            mine = [(rows[:0], drawn[:0])]
        parts = []
        for rows, drawn in mine:
            with autocast(self.device):
                images = self.training[rows.to(self.device)]
                parts.append(self.model.represent(self.inputs(images, drawn.to(self.device))))
        return gather_rows(torch.cat(parts))


def add_over_processes(gradients: list[Tensor]) -> None:
    """Add up gradients over all processes, in place, in one message."""
    if world_size() == 1:
        return
    flat = mean_over_processes(torch.cat([g.flatten() for g in gradients])) * world_size()
    for gradient, part in zip(
        gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))


def cut_to_length(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Scale gradients, in place, so that together they are no longer than `limit`; how long they
    were."""
    length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / length).clamp_max(1))
    return length
