"""The trainer: the networks, the images, and what is kept of them between epochs.

Several processes share a batch: each runs its images through the networks, embeddings are gathered, every process
computes the whole loss and backs it through its own images, and gradients are added up, so the result is that of one
process, to rounding.

N images, n of them for training, B of a batch, b this process's share of it, T steps of an epoch.
"""

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.checksums import digest_rows
from shoal.distributed import mean_over_processes, shard, world_size
from shoal.encoders.embed import Progress, autocast, explain_out_of_memory
from shoal.encoders.head import Head, compact
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.settings import to_dict
from shoal.training.bank import Bank, BankKind, collapse_statistics
from shoal.training.data import TrainingData
from shoal.training.forward import Forward
from shoal.training.identity import identify_encoder
from shoal.training.objective import Batch, Objective
from shoal.training.sampling import balanced_batches, check_batch_size, epoch_generator
from shoal.training.tokens import TokenCache, cache_tokens, pool_views, resident, take
from shoal.training.totals import Totals
from shoal.training.validation import Validation, validate
from shoal.training.views import ViewSettings, draw_views

BATCHES, VIEWS, BANK_VIEWS, OBJECTIVE, POOL = range(5)
"""What an epoch draws random numbers for; each has a generator of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """How long, how fast and on which batches; the defaults are the paper's for fine-grained images."""

    epochs: int = 200
    batch_size: int = 128
    lr: float = 0.05
    """Learning rate at the start; it falls along a cosine, epoch by epoch."""
    min_lr: float = 0.005
    """Where it ends, as a share of `lr`."""
    momentum: float = 0.9
    weight_decay: float = 5.0e-05
    max_gradient: float | None = None
    """Longer gradients are cut to this length; None, as in the paper, cuts none."""
    bank: BankKind = "images"
    """What the bank holds: an un-augmented embedding per image, or two random views of each (released code)."""
    snapshot: Literal["best", "last"] = "best"
    """Which epoch's networks are kept: the one with the highest validation accuracy, as in the paper, or the last. Of a
    few hundred labeled validation images the highest accuracy is largely chance once it has stopped rising."""
    views: ViewSettings = field(default_factory=ViewSettings)
    compile: bool = False
    """Let torch.compile rewrite the networks, as CUDA graphs on a GPU: a minute once, less time per step."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"epochs: found {self.epochs}, expected at least 1")
        check_batch_size(self.batch_size)
        if not 0 < self.lr < 100:
            raise UsageError(f"lr: found {self.lr}, expected a number above 0, say 0.01")
        if not 0 <= self.min_lr <= 1:
            raise UsageError(f"min_lr: found {self.min_lr}, expected a share of lr in [0, 1]")
        if self.max_gradient is not None and not self.max_gradient > 0:
            raise UsageError(f"max_gradient: found {self.max_gradient}, expected a number above 0, or null for none")
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < 1:
            raise UsageError(
                f"momentum, weight_decay: found {self.momentum}, {self.weight_decay}, expected both in [0, 1)"
            )
        if self.seed < 0:
            raise UsageError(f"seed: found {self.seed}, expected 0 or more")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        wave = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * (self.min_lr + (1 - self.min_lr) * wave)


class Trainer:
    """The networks, the images and what is kept of them between epochs."""

    def __init__(
        self,
        data: TrainingData,
        encoder: Encoder,
        head: Head,
        objective: Objective,
        settings: TrainSettings,
    ) -> None:
        self.data, self.settings = data, settings
        self.encoder, self.head, self.objective = encoder, head, objective
        self.device = encoder.device
        self.parameters = [
            value for module in (encoder.tail, head, objective) for value in module.parameters() if value.requires_grad
        ]
        self.optimizer = torch.optim.SGD(
            self.parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        self.forward = Forward(encoder, head, settings.views, is_compiled=settings.compile)
        self.training = torch.from_numpy(data.training).to(self.device)  # (n,) rows of the collection
        self.labels = torch.from_numpy(data.training_labels).to(self.device)  # (n,)
        self._embeddings: Tensor | None = None

    def prepare(
        self, token_file: Path | None = None, view_file: Path | None = None, progress: Progress | None = None
    ) -> None:
        """Bring the pixels to the device and run the trunk over them, once; comes before anything below.

        The files take what does not fit into memory. `progress` counts the batches of `n_trunk_batches`.
        """
        self.pixels = resident(self.data.pixels, self.device)
        size, views, judge = 2 * self.settings.batch_size, self.settings.views, self.data.judge
        after_tokens, after_judge, total = itertools.accumulate(self._trunk_passes())
        self.tokens = self.data.tokens or cache_tokens(
            self.pixels, self.encoder, batch_size=size, file=token_file, progress=_batches(progress, 0, total, size)
        )
        if judge is not None:
            count = _batches(progress, after_tokens, total, size)
            self.judge_tokens = cache_tokens(judge.pixels, self.encoder, batch_size=size, progress=count)
        self.pool = self.data.pool
        if self.pool is None and views.pool is not None:
            self.pool = pool_views(
                self.pixels,
                self.encoder,
                views,
                generator=pool_generator(self.settings.seed),
                batch_size=size,
                file=view_file,
                progress=_batches(progress, after_judge, total, size),
            )

    @property
    def n_trunk_batches(self) -> int:
        """How many batches `prepare` runs through the trunk in this process."""
        return sum(self._trunk_passes())

    def _trunk_passes(self) -> tuple[int, int, int]:
        """Batches of images, of the judge's images, and of the pool's views; none of what is there already."""
        data, n_views = self.data, self.settings.views.pool or 0
        judged = 0 if data.judge is None else _n_own(len(data.judge.pixels))
        rows = (
            _n_own(len(data.pixels)) if data.tokens is None else 0,
            judged,
            len(data.pixels) * n_views if data.pool is None else 0,
        )
        size = 2 * self.settings.batch_size
        return math.ceil(rows[0] / size), math.ceil(rows[1] / size), math.ceil(rows[2] / size)

    def clean(self) -> None:
        """Delete the files of tokens that this trainer has made."""
        if self.data.tokens is None:
            self.tokens.remove()
        if self.data.pool is None and self.pool is not None:
            self.pool.remove()

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        data = self.data
        return {
            "training": to_dict(self.settings),
            "head": to_dict(self.head.settings),
            "objective": self.objective.identity(),
            "encoder": identify_encoder(self.encoder),
            "data": {
                "images": digest_rows(data.pixels),
                "labels": digest_rows(data.labels),
                "validation": None if data.validation is None else digest_rows(data.validation),
                "trains_on_validation": data.trains_on_validation,
                "judge": None if data.judge is None else digest_rows(data.judge.pixels),
            },
        }

    def run_epoch(self, epoch: int, progress: Progress | None = None) -> dict[str, Any]:
        """Renew the bank and train on every batch once; the row of metrics says how it went."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(epoch)
        row: dict[str, Any] = {"epoch": epoch + 1, "lr": self.settings.lr_at(epoch)}
        bank = self.renew_bank(epoch) if self.objective.uses_bank else None
        if bank is not None:
            row |= collapse_statistics(bank.rows)
        batches, draws = self._draw(epoch)
        generator = epoch_generator(self.settings.seed, epoch, OBJECTIVE)
        totals = Totals(self.device)
        for step, (rows, look) in enumerate(zip(batches, draws, strict=True)):
            with explain_out_of_memory("batch_size", self.settings.batch_size):
                totals.add(step, self._step(rows, look, bank, epoch, generator))
            if progress is not None:
                progress(step + 1, len(batches))
        totals.check_finite(epoch + 1, self.settings.lr_at(epoch))
        return row | totals.means()

    def renew_bank(self, epoch: int) -> Bank:
        """Embed every image (or two random views of each) with the networks as they are now."""
        basis = self.head.basis()
        is_plain = self.settings.bank == "images"
        embeddings = self.embed_all()[self.training] if is_plain else self._embed_random_views(epoch)
        return Bank(rows=compact(embeddings, basis).clone(), basis=basis, kind=self.settings.bank)

    def embed_all(self) -> Tensor:
        """(N, D) what images are clustered by, with the networks as they are now; computed once between two epochs."""
        if self._embeddings is None:
            self._embeddings = self._embed(self.tokens)
        return self._embeddings

    def _embed(self, tokens: TokenCache) -> Tensor:
        head = None if self.objective.discards_head else self.head
        with explain_out_of_memory("batch_size", self.settings.batch_size):
            return tokens.embed(self.encoder, head)

    def forget_embeddings(self) -> None:
        """Say that the networks have changed."""
        self._embeddings = None

    def validate(self, n_clusters: int | None = None, rule: str | None = None) -> Validation:
        """Score the networks as they are now on the validation images, or by the judge where there is one."""
        rows = self.data.validation
        basis = None if self.objective.discards_head else self.head.basis()
        if self.data.judge is not None:
            return self.data.judge.score(compact(self._embed(self.judge_tokens), basis), n_clusters)
        if rows is None:
            return Validation(accuracy=float("nan"), n_clusters=n_clusters)
        embeddings = compact(self.embed_all()[torch.from_numpy(rows).to(self.device)], basis)
        return validate(embeddings, self.data.labels[rows], n_clusters=n_clusters, rule=rule)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """All random choices of an epoch in two small tables, moved to the device at once: (T, B) rows, (T, 2B, 7)."""
        size, seed = self.settings.batch_size, self.settings.seed
        batches = balanced_batches(self.data.training_labels, size, epoch_generator(seed, epoch, BATCHES))
        draws = draw_views(2 * batches.numel(), epoch_generator(seed, epoch, VIEWS)).view(len(batches), 2 * size, -1)
        return batches.to(self.device), draws.to(self.device)

    def _step(
        self, rows: Tensor, draws: Tensor, bank: Bank | None, epoch: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        mine = shard(len(rows))
        images = rows[mine].repeat(2)  # (2b,)
        draws = torch.cat([half[mine] for half in draws.chunk(2)])  # (2b, 7)
        features, embeddings = self.forward.embeddings(self._tokens(images, draws))
        losses = self.objective(
            Batch(
                images=images,
                features=features,
                embeddings=embeddings,
                labels=self.labels[rows].repeat(2),
                bank=bank,
                epoch=epoch,
                generator=generator,
            )
        )
        self._backward(losses["loss"])
        losses["gradient"] = self._update()
        self.forget_embeddings()
        return {name: value.detach() for name, value in losses.items()}

    def _tokens(self, images: Tensor, draws: Tensor) -> Tensor:
        """The trunk's tokens of views of some training images, begun anew."""
        self.forward.begin()
        if self.pool is not None:
            return self.pool.take(self.training[images], draws)
        source, places = take(self.pixels, self.training[images], self.device)
        return self.forward.tokens(self.forward.cut(source, places, draws), draws)

    def _backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def _update(self) -> Tensor:
        """Take a step along the gradients, which are freed; their length."""
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        _add_over_processes(gradients)
        length = _length(gradients)
        if self.settings.max_gradient is not None:
            torch._foreach_mul_(gradients, (self.settings.max_gradient / length).clamp_max(1))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return length

    @torch.no_grad()
    def _embed_random_views(self, epoch: int) -> Tensor:
        """(2N, D), view 1 of every image, then view 2; each process does all of them (the released code's variant)."""
        n_images, size = len(self.labels), 2 * self.settings.batch_size
        draws = draw_views(2 * n_images, epoch_generator(self.settings.seed, epoch, BANK_VIEWS)).to(self.device)
        images = torch.arange(n_images, device=self.device).repeat(2)
        parts = []
        for rows, look in zip(torch.split(images, size), torch.split(draws, size), strict=True):
            with autocast(self.device):
                parts.append(self.head(self.encoder.tail(self._tokens(rows, look))))
        return torch.cat(parts)


def pool_generator(seed: int) -> torch.Generator:
    """What a run's pool of views is drawn with."""
    return epoch_generator(seed, 0, POOL)


def _n_own(n_rows: int) -> int:
    mine = shard(n_rows)
    return int(mine.stop - mine.start)


def _batches(progress: Progress | None, before: int, total: int, size: int) -> Progress | None:
    """Turn a count of rows into one of batches of `size`, after others."""
    if progress is None:
        return None
    return lambda done, _: progress(before + math.ceil(done / size), total)


def _length(gradients: list[Tensor]) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return length


def _add_over_processes(gradients: list[Tensor]) -> None:
    """Add up gradients over all processes, in place, in one message."""
    if world_size() == 1:
        return
    flat = mean_over_processes(torch.cat([g.flatten() for g in gradients])) * world_size()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
