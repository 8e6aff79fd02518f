"""The trainer: a model, the images, and what is kept of them between epochs.

Several processes share a batch: each runs its images through the networks, embeddings are gathered, every process
computes the whole loss and backs it through its own images, and gradients are added up, so the result is that of one
process, to rounding.

N images, n of them for training, B of a batch, b this process's share of it, V views of each, T steps of an epoch, D
entries of an embedding.
"""

import functools
import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import gather_rows, mean_over_processes, n_own, shard, world_size
from shoal.encoders.embed import autocast, explain_out_of_memory
from shoal.errors import Diverged
from shoal.progress import Progress, count_after
from shoal.settings import to_dict
from shoal.training.data import TrainingData
from shoal.training.epoch_draws import EpochDraws
from shoal.training.forward import Forward
from shoal.training.model import Batch, Epoch, Model, numbered_labels
from shoal.training.recorded_step import FEWEST, RecordedStep, Step, is_recordable
from shoal.training.tokens import ImageInputs, TokenCache, resident
from shoal.training.train_settings import TrainSettings
from shoal.training.validation import Validation, score_clusters, validate
from shoal.training.view_pool import pool_views


class Trainer:
    """The model, the images and what is kept of them between epochs."""

    def __init__(self, data: TrainingData, model: Model[Any], settings: TrainSettings) -> None:
        self.data = data
        self.model = model
        self.settings = settings
        self.device = model.device
        self.parameters = model.trained_parameters()
        self.optimizer = model.make_optimizer(settings)
        self.forward = Forward(model, settings.views)
        self.training = torch.from_numpy(data.training).to(self.device)  # (n,) rows of N
        labels = numbered_labels(data.training_labels)
        self.labels = torch.from_numpy(labels).to(self.device)  # (n,)
        self.epoch_draws = self._draws_of(data.training_labels)
        self.n_epochs_left = settings.epochs
        self._batch_size = f"training.batch_size (now {settings.batch_size})"
        self._embeddings: Tensor | None = None
        self._recorded: RecordedStep | None = None

    def _draws_of(self, labels: Ints) -> EpochDraws:
        """The draws of a training like this one with labels (n,) of the training images."""
        return EpochDraws(labels, self.settings, self.model.n_views, self.model.embeds_views)

    def prepare(
        self,
        token_file: Path | None = None,
        view_file: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Bring the pixels to the device and run the trunk over them, once; comes before anything below.

        The files take what does not fit into memory. `progress` counts the rows of images and views. Of a pool of
        views those are made that the run looks at in any epoch, the same whether it is resumed or not; none where no
        epoch is left.
        """
        pixels = resident(self.data.pixels, self.device)
        size = 2 * self.settings.batch_size
        n_images, n_judge, n_views = self.n_trunk_rows
        total = n_images + n_judge + n_views
        self.tokens: TokenCache | ImageInputs
        if self._makes_tokens:
            self.tokens = self.model.inputs_of(
                pixels,
                batch_size=size,
                file=token_file,
                progress=count_after(progress, 0, total),
            )
        else:
            assert self.data.tokens is not None
            self.tokens = self.data.tokens
        if self.data.judge is not None:
            self.judge_tokens = self.model.inputs_of(
                self.data.judge.pixels,
                batch_size=size,
                progress=count_after(progress, n_images, total),
            )
        self.forward.pixels = pixels
        if self._makes_pool:
            self.forward.pool = pool_views(
                pixels,
                self.model.encoder,
                self.settings.views,
                generator=self.epoch_draws.for_pool(),
                only=self._pooled_views,
                batch_size=size,
                file=view_file,
                progress=count_after(progress, n_images + n_judge, total),
            )
        elif not self.model.reads_images:
            self.forward.pool = self.data.pool

    @property
    def _makes_tokens(self) -> bool:
        return self.data.tokens is None or self.model.reads_images

    @property
    def _makes_pool(self) -> bool:
        is_wanted = self.settings.views.pool is not None and not self.model.reads_images
        return self.data.pool is None and is_wanted and self.n_epochs_left > 0

    @cached_property
    def _pooled_views(self) -> Ints:
        """The views that this training and others on the same images look at, as rows of a pool, sorted."""
        rows = self.data.training
        others = [labels[rows] for labels in self.data.pool_labels]
        every_training = [self.data.training_labels, *others]
        views = [self._draws_of(labels).pooled_views(rows) for labels in every_training]
        return functools.reduce(np.union1d, views)

    @property
    def n_trunk_rows(self) -> tuple[int, int, int]:
        """Images, the judge's images, and views of the pool that `prepare` runs through the trunk in this process.

        None of what is there already.
        """
        data = self.data
        if self.model.reads_images:
            return 0, 0, 0
        n_images = n_own(len(data.pixels)) if self._makes_tokens else 0
        n_judge = 0 if data.judge is None else n_own(len(data.judge.pixels))
        n_views = n_own(len(self._pooled_views)) if self._makes_pool else 0
        return n_images, n_judge, n_views

    def clean(self) -> None:
        """Delete the files of tokens that this trainer has made."""
        if self._makes_tokens:
            self.tokens.remove()
        if self.data.pool is None and self.forward.pool is not None:
            self.forward.pool.remove()

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        return {
            "training": to_dict(self.settings),
            "method": self.model.identity(),
            "encoder": self.model.encoder.identity(),
            "data": self.data.identity(),
        }

    def run_epoch(self, epoch: int, progress: Progress | None = None) -> dict[str, Any]:
        """Let the model begin the epoch and train on every batch once; the row of metrics says how it went."""
        lr = self.model.lr_at(epoch, self.settings)
        row: dict[str, Any] = {"epoch": epoch + 1, "lr": lr}
        row |= self.begin_epoch(epoch)
        self.optimizer.lr = lr
        batches, view_draws = self._draw(epoch)
        generator = self.epoch_draws.for_objective(epoch)
        totals = Totals(self.device)

        def take(rows: Tensor, drawn: Tensor) -> dict[str, Tensor]:
            return self._step(rows, drawn, epoch, generator)

        step: Step = take
        pool = self.forward.pool
        is_on_device = pool is not None and isinstance(pool.tokens, Tensor)
        is_recorded = is_on_device and len(batches) >= FEWEST and is_recordable(self.model)
        for at, (rows, drawn) in enumerate(zip(batches, view_draws, strict=True)):
            with explain_out_of_memory(self._batch_size):
                if at == 1 and is_recorded:
                    step = self._record(take, rows, drawn)
                totals.add(at, step(rows, drawn))
            if progress is not None:
                progress(at + 1, len(batches))
        totals.check_weights(self.parameters)
        totals.check_finite(epoch + 1, lr)
        return row | totals.means()

    def _record(self, step: Step, rows: Tensor, drawn: Tensor) -> Step:
        """The step as a CUDA graph; as it is where there is no memory for one."""
        try:
            self._recorded = RecordedStep(step, rows, drawn, self._recorded)
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad()  # what was recorded of them holds no numbers
            return step
        return self._recorded

    def begin_epoch(self, epoch: int) -> dict[str, float]:
        """Let the model look at the training images, with the networks as they are now; what it says of them."""
        return self.model.begin_epoch(
            Epoch(
                number=epoch,
                labels=self.labels,
                embed=lambda: self.embed_all()[self.training],
                embed_views=lambda: self._embed_random_views(epoch),
                generator=self.epoch_draws.for_epoch(epoch),
            )
        )

    def embed_all(self) -> Tensor:
        """(N, D) what images are clustered by, with the networks as they are now; computed once between two epochs."""
        if self._embeddings is None:
            self._embeddings = self._embed(self.tokens)
        return self._embeddings

    def _embed(self, tokens: TokenCache | ImageInputs) -> Tensor:
        with explain_out_of_memory(self._batch_size):
            return tokens.embed(self.model.represent, self.device)

    def forget_embeddings(self) -> None:
        """Say that the networks have changed."""
        self._embeddings = None

    def validate(self, n_clusters: int | None = None, rule: str | None = None) -> Validation:
        """Score the networks as they are now on the validation images, or by the judge where there is one.

        A model with a classifier is scored by its predictions, any other by Ward's tree of the embeddings.
        """
        rows = self.data.validation
        judge = self.data.judge
        if judge is not None:
            embeddings = self.model.compact(self._embed(self.judge_tokens))
            predicted = self.predict(embeddings)
            if predicted is None:
                return judge.score(embeddings, n_clusters)
            assert judge.score_clusters is not None
            return judge.score_clusters(predicted)
        if rows is None:
            return Validation(accuracy=float("nan"), n_clusters=n_clusters)
        embeddings = self.model.compact(self.embed_all()[torch.from_numpy(rows).to(self.device)])
        predicted = self.predict(embeddings)
        labels = self.data.labels[rows]
        if predicted is not None:
            return score_clusters(predicted, labels, n_clusters)
        return validate(embeddings, labels, n_clusters=n_clusters, rule=rule)

    def answer(self) -> tuple[Tensor, Ints | None]:
        """Embeddings (N, D) of all images, compact, and their clusters (N,) where the model has a classifier."""
        embeddings = self.model.compact(self.embed_all())
        return embeddings, self.predict(embeddings)

    def predict(self, embeddings: Tensor) -> Ints | None:
        """(N,) clusters of unit embeddings (N, D) by the model's classifier; None where it has none."""
        with torch.inference_mode():
            clusters = self.model.predict(embeddings)
        return None if clusters is None else clusters.cpu().numpy()

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """All random choices of an epoch in two small tables, moved to the device at once: (T, B) rows, (T, V·B, 7)."""
        batches, view_draws = self.epoch_draws.steps(epoch)
        return batches.to(self.device), view_draws.to(self.device)

    def _step(
        self, rows: Tensor, view_draws: Tensor, epoch: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        mine = shard(len(rows))
        n_views = self.model.n_views
        images = rows[mine].repeat(n_views)  # (V·b,)
        view_draws = torch.cat([view[mine] for view in view_draws.chunk(n_views)])  # (V·b, 7)
        inputs = self.forward.inputs(self.training[images], view_draws, n_views)
        batch = Batch(
            images=images,
            inputs=inputs,
            outputs=self.forward.outputs(inputs),
            labels=self.labels[rows].repeat(n_views),
            epoch=epoch,
            generator=generator,
            n_views=n_views,
        )
        return self.take_step(batch)

    def take_step(self, batch: Batch) -> dict[str, Tensor]:
        """Move the weights by the loss of a batch that has gone through the model; the loss, its parts and gradient."""
        losses = self.model.loss(batch)
        torch.autograd.backward(losses["loss"])
        losses["gradient"] = self._update()
        self.forget_embeddings()
        with torch.no_grad():
            self.model.after_step(batch)
        return {name: value.detach() for name, value in losses.items()}

    def _update(self) -> Tensor:
        """Take a step along the gradients, which are freed; their length."""
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        add_over_processes(gradients)
        length = cut_to_length(gradients, self.settings.max_gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return length

    @torch.no_grad()
    def _embed_random_views(self, epoch: int) -> Tensor:
        """(2n, D), view 1 of every training image, then view 2, in every process; each does a share of the batches."""
        batches = list(self.epoch_draws.bank(epoch))
        mine = batches[shard(len(batches))]
        longest = len(batches[shard(len(batches), 0)])
        # All processes take from a pool at once: one that has no batch left takes none of the views of any.
        mine += [(rows[:0], drawn[:0]) for rows, drawn in batches[: longest - len(mine)]]
        parts = []
        for rows, drawn in mine:
            with autocast(self.device):
                inputs = self.forward.inputs(
                    self.training[rows.to(self.device)], drawn.to(self.device)
                )
                parts.append(self.model.represent(inputs))
        return gather_rows(torch.cat(parts))


class Totals:
    """Sums of an epoch's losses, on the device: nothing is read before the epoch's end, so no step waits."""

    def __init__(self, device: torch.device) -> None:
        self.sums: dict[str, Tensor] = {}
        self.n_steps = 0
        self.first_bad = torch.tensor(math.inf, device=device)

    def add(self, step: int, losses: dict[str, Tensor]) -> None:
        """Add a step's values; the first step with a loss, or a gradient, that is no number is remembered."""
        self.n_steps += 1
        # A gradient that overflows leaves no trace in its own step's loss, and in the epoch's last step in none.
        is_finite = (losses["loss"] + losses.get("gradient", losses["loss"])).isfinite()
        self.first_bad = torch.where(is_finite, self.first_bad, self.first_bad.clamp_max(step))
        for name, value in losses.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def means(self) -> dict[str, float]:
        """The mean of each value over the steps."""
        return {name: float(value) / self.n_steps for name, value in self.sums.items()}

    def check_weights(self, weights: Iterable[Tensor]) -> None:
        """Blame the last step where it has left weights that are no numbers: no later loss tells of them."""
        is_finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
        self.first_bad = torch.where(
            is_finite, self.first_bad, self.first_bad.clamp_max(self.n_steps - 1)
        )

    def check_finite(self, epoch: int, lr: float) -> None:
        """Stop a run whose loss or gradient was infinite or no number."""
        if bool(self.first_bad.isfinite()):
            raise Diverged(
                f"epoch {epoch}, step {int(self.first_bad) + 1}: the loss or its gradient is not a finite number "
                f"(lr {lr:.4g}); lower lr, raise the temperature or bound training.max_gradient and start over (shoal "
                "discover: --force), or check the images: resuming would take the same settings to the same step"
            )


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
    """Scale gradients, in place, so that together they are no longer than `limit`; how long they were."""
    length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / length).clamp_max(1))
    return length
