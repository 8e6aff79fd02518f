"""The trainer: the networks, the images, and what is kept of them between epochs.

Several processes share a batch: each runs its images through the networks, embeddings are gathered, every process
computes the whole loss and backs it through its own images, and gradients are added up, so the result is that of one
process, to rounding.

N images, n of them for training, B of a batch, b this process's share of it, T steps of an epoch, D entries of an
embedding.
"""

import itertools
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.checksums import digest_rows
from shoal.distributed import shard
from shoal.encoders.embed import Progress, autocast, explain_out_of_memory
from shoal.encoders.head import Head, compact
from shoal.encoders.vision import Encoder
from shoal.settings import to_dict
from shoal.training.bank import Bank, collapse_statistics
from shoal.training.data import TrainingData
from shoal.training.draws import Draws, views_to_pool
from shoal.training.forward import Forward
from shoal.training.gradients import add_over_processes, cut_to_length
from shoal.training.identity import identify_encoder
from shoal.training.objective import Batch, Objective
from shoal.training.pool import pool_views
from shoal.training.settings import TrainSettings
from shoal.training.tokens import TokenCache, cache_tokens, resident, take
from shoal.training.totals import Totals
from shoal.training.validation import Validation, validate


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
        self.draws = Draws(data.training_labels, settings)
        self.n_epochs_left = settings.epochs
        self._batch_size = f"training.batch_size (now {settings.batch_size})"
        self._embeddings: Tensor | None = None

    def prepare(
        self, token_file: Path | None = None, view_file: Path | None = None, progress: Progress | None = None
    ) -> None:
        """Bring the pixels to the device and run the trunk over them, once; comes before anything below.

        The files take what does not fit into memory. `progress` counts the rows of images and views. Of a pool of
        views those are made that the run looks at in any epoch, the same whether it is resumed or not; none where no
        epoch is left.
        """
        self.pixels = resident(self.data.pixels, self.device)
        size, judge = 2 * self.settings.batch_size, self.data.judge
        after_tokens, after_judge, total = itertools.accumulate(self.n_trunk_rows)
        self.tokens = self.data.tokens or cache_tokens(
            self.pixels, self.encoder, batch_size=size, file=token_file, progress=_after(progress, 0, total)
        )
        if judge is not None:
            count = _after(progress, after_tokens, total)
            self.judge_tokens = cache_tokens(judge.pixels, self.encoder, batch_size=size, progress=count)
        self.pool = self.data.pool
        if self._makes_pool:
            self.pool = pool_views(
                self.pixels,
                self.encoder,
                self.settings.views,
                generator=self.draws.for_pool(),
                only=self._pooled_views,
                batch_size=size,
                file=view_file,
                progress=_after(progress, after_judge, total),
            )

    @property
    def _makes_pool(self) -> bool:
        return self.data.pool is None and self.settings.views.pool is not None and self.n_epochs_left > 0

    @cached_property
    def _pooled_views(self) -> Ints:
        return views_to_pool(self.data.pooled_labels, self.data.training, self.settings)

    @property
    def n_trunk_rows(self) -> tuple[int, int, int]:
        """Images, the judge's images, and views of the pool that `prepare` runs through the trunk in this process.

        None of what is there already.
        """
        data = self.data
        judged = 0 if data.judge is None else _n_own(len(data.judge.pixels))
        return (
            _n_own(len(data.pixels)) if data.tokens is None else 0,
            judged,
            len(self._pooled_views) if self._makes_pool else 0,
        )

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
        batches, looks = self._draw(epoch)
        generator = self.draws.for_objective(epoch)
        totals = Totals(self.device)
        for step, (rows, look) in enumerate(zip(batches, looks, strict=True)):
            with explain_out_of_memory(self._batch_size):
                totals.add(step, self._step(rows, look, bank, epoch, generator))
            if progress is not None:
                progress(step + 1, len(batches))
        totals.check_weights(parameter for group in self.optimizer.param_groups for parameter in group["params"])
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
        with explain_out_of_memory(self._batch_size):
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
        batches, looks = self.draws.steps(epoch)
        return batches.to(self.device), looks.to(self.device)

    def _step(
        self, rows: Tensor, looks: Tensor, bank: Bank | None, epoch: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        mine = shard(len(rows))
        images = rows[mine].repeat(2)  # (2b,)
        looks = torch.cat([half[mine] for half in looks.chunk(2)])  # (2b, 7)
        features, embeddings = self.forward.embeddings(self._tokens(images, looks))
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

    def _tokens(self, images: Tensor, looks: Tensor) -> Tensor:
        """The trunk's tokens of views of some training images, begun anew."""
        self.forward.begin()
        if self.pool is not None:
            return self.pool.take(self.training[images], looks)
        source, places = take(self.pixels, self.training[images], self.device)
        return self.forward.tokens(self.forward.cut(source, places, looks), looks)

    def _backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def _update(self) -> Tensor:
        """Take a step along the gradients, which are freed; their length."""
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        add_over_processes(gradients)
        length = cut_to_length(gradients, self.settings.max_gradient)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return length

    @torch.no_grad()
    def _embed_random_views(self, epoch: int) -> Tensor:
        """(2N, D), view 1 of every image, then view 2; each process does all of them (the released code's variant)."""
        parts = []
        for rows, look in self.draws.bank(epoch):
            with autocast(self.device):
                tokens = self._tokens(rows.to(self.device), look.to(self.device))
                parts.append(self.head(self.encoder.tail(tokens)))
        return torch.cat(parts)


def _n_own(n_rows: int) -> int:
    mine = shard(n_rows)
    return int(mine.stop - mine.start)


def _after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Count rows after others."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)
