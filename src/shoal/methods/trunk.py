"""What the frozen trunk computes of some images, once for all trainings on them: tokens, and pools
of views.

Trainings share tokens where they split the same encoder in the same place, and a pool where its
views are drawn alike. N images.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.checksums import digest_rows
from shoal.distributed import n_own
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import ImageRows
from shoal.encoders.vision import Encoder
from shoal.methods.method import TrainedSettings
from shoal.progress import Progress, count_after
from shoal.training.epoch_draws import EpochDraws
from shoal.training.task import Task
from shoal.training.tokens import TokenCache, cache_tokens, resident
from shoal.training.view_pool import ViewPool, pool_views

Split = tuple[str, int | None, int | None]
"""An encoder, how many of its last blocks are trained, and its input size."""

Lesson = tuple[Task, TrainedSettings]
"""What a training learns from, and how."""


@dataclass(eq=False, kw_only=True)
class Trunk:
    """Tokens of N images by split of the encoder, and for each split the pool of views that was
    asked for last."""

    pixels: ImageRows
    device: torch.device
    batch_size: int | None = None
    """How many images go through the trunk together; twice a batch of the training if not given."""
    tokens: dict[Split, Tensor] = field(default_factory=dict)
    pools: dict[Split, tuple[object, ViewPool]] = field(default_factory=dict)

    def prepare(
        self,
        task: Task,
        settings: TrainedSettings,
        planned: Sequence[Lesson] = (),
        *,
        with_pool: bool = True,
        progress: Progress | None = None,
    ) -> Task:
        """The task with tokens and pool, which are computed where they are not there yet;
        `progress` counts that.

        The pool holds the views that the `planned` trainings look at, of which this is one; else
        its own.
        """
        split = split_of(settings)
        size = self.batch_size or 2 * settings.training.batch_size
        lessons = [one for one in planned or [(task, settings)] if _draws_alike(one[1], settings)]
        key = [_lesson_key(*one) for one in lessons]
        has_pool = with_pool and settings.training.views.pool is not None
        views = np.empty(0, dtype=np.int64)
        if has_pool and (split not in self.pools or self.pools[split][0] != key):
            views = functools.reduce(np.union1d, [_views(*one) for one in lessons])
        is_missing = split not in self.tokens
        if is_missing or len(views):
            encoder = self._load(split)
            pixels = resident(self.pixels, self.device)
        n_images = n_own(len(self.pixels)) if is_missing else 0
        total = n_images + n_own(len(views))
        if is_missing:
            self.tokens[split] = cache_tokens(
                pixels,
                encoder,
                batch_size=size,
                progress=count_after(progress, 0, total),
            ).tokens
        if len(views):
            self.pools.pop(split, None)  # its memory is needed
            pool = pool_views(
                pixels,
                encoder,
                settings.training.views,
                generator=EpochDraws(task.training_labels, settings.training).for_pool(),
                only=views,
                batch_size=size,
                progress=count_after(progress, n_images, total),
            )
            self.pools[split] = (key, pool)
        return replace(
            task,
            tokens=TokenCache(self.tokens[split], size),
            pool=self.pools[split][1] if has_pool else None,
        )

    def drop(self, split: Split) -> None:
        """Let go of what one split has computed."""
        self.tokens.pop(split, None)
        self.pools.pop(split, None)

    def free(self) -> None:
        """Let go of all of it."""
        self.tokens.clear()
        self.pools.clear()

    def _load(self, split: Split) -> Encoder:
        name, n_tail_blocks, input_size = split
        encoder = load_encoder(name, n_tail_blocks=n_tail_blocks, input_size=input_size)
        return encoder.to(self.device)


def split_of(settings: TrainedSettings) -> Split:
    """Equal where tokens are."""
    return settings.encoder, settings.n_tail_blocks, settings.input_size


def _draws_alike(settings: TrainedSettings, other: TrainedSettings) -> bool:
    """Whether the views of a pool are made alike."""
    ours = settings.training
    theirs = other.training
    is_same = ours.views == theirs.views and ours.seed == theirs.seed
    return is_same and split_of(settings) == split_of(other)


def _lesson_key(task: Task, settings: TrainedSettings) -> tuple[object, ...]:
    """Equal where two trainings look at the same views."""
    training = settings.training
    draws = (training.views, training.seed, training.epochs, training.batch_size)
    return digest_rows(task.training_labels), digest_rows(task.training), draws


def _views(task: Task, settings: TrainedSettings) -> Ints:
    """The views of a pool that a training looks at."""
    return EpochDraws(task.training_labels, settings.training).pooled_views(task.training)
