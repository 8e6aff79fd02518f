"""What the frozen trunk computes, once for all trainings of a comparison: tokens of the images, and a pool of views.

Trainings share tokens where they train the same blocks of the same encoder, and a pool where its views are made alike;
it holds the views that any of them looks at.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.arrays import Ints
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.distributed import n_own
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import ImageRows
from shoal.methods.task import Task
from shoal.progress import Progress, count_after
from shoal.training.epoch_draws import EpochDraws
from shoal.training.loop import TOKENS, VIEWS
from shoal.training.tokens import TokenCache, cache_tokens, resident
from shoal.training.view_pool import ViewPool, pool_views

Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """A method to be trained on one draw of kept labels."""

    draw: int
    settings: DiscoverySettings
    task: Task
    n_views: int
    """Of each image in a batch."""
    reads_images: bool
    """Whether the method's networks begin with the images: then there are no tokens to share."""

    @property
    def tokens_key(self) -> Key | None:
        """Equal where tokens are; None where there are none."""
        chosen = self.settings.of_method
        return (
            None if self.reads_images else (chosen.encoder, chosen.n_tail_blocks, chosen.input_size)
        )

    @property
    def pool_key(self) -> Key | None:
        """Equal where views are made alike; None where there is no pool."""
        training = self.settings.of_method.training
        if self.tokens_key is None or training.views.pool is None:
            return None
        return (*self.tokens_key, training.views, training.seed)

    @property
    def pooled_views(self) -> Ints:
        """The views of the pool that this training looks at."""
        return self.epoch_draws.pooled_views(self.task.training)

    @property
    def epoch_draws(self) -> EpochDraws:
        """What this training draws."""
        chosen = self.settings.of_method
        labels = self.task.training_labels
        return EpochDraws(labels, chosen.training, self.n_views, chosen.embeds_views)


class SharedTrunk:
    """Tokens and pools of some trainings, made when they are first asked for."""

    def __init__(
        self,
        pixels: ImageRows,
        trainings: Sequence[Training],
        *,
        device: torch.device,
        scratch: Path,
    ) -> None:
        self.pixels = pixels
        self.trainings = trainings
        self.device = device
        self.scratch = scratch
        self._tokens: dict[Key, TokenCache] = {}
        self._pools: dict[Key, ViewPool] = {}
        self._views: dict[Key, Ints] = {}

    @property
    def n_rows(self) -> int:
        """How many images and views the trunk goes over in this process, for all trainings."""
        keys = {key for training in self.trainings if (key := training.tokens_key)}
        pools = {key for training in self.trainings if (key := training.pool_key)}
        return len(keys) * n_own(len(self.pixels)) + sum(
            n_own(len(self._views_of(key))) for key in pools
        )

    def n_missing(self, training: Training) -> int:
        """How many of them a training needs that are not there yet."""
        key = training.tokens_key
        pool_key = training.pool_key
        n_images = 0 if key is None or key in self._tokens else n_own(len(self.pixels))
        return n_images + (
            0
            if pool_key is None or pool_key in self._pools
            else n_own(len(self._views_of(pool_key)))
        )

    def share(self, training: Training, progress: Progress | None = None) -> Task:
        """The task of a training with what the trunk has computed; `progress` counts what is missing."""
        key = training.tokens_key
        pool_key = training.pool_key
        total = self.n_missing(training)
        if key is None:
            return training.task
        batch_size = 2 * training.settings.of_method.training.batch_size
        before = 0
        if key not in self._tokens:
            self._tokens[key] = self._make_tokens(key, batch_size, count_after(progress, 0, total))
            before = n_own(len(self.pixels))
        if pool_key is not None and pool_key not in self._pools:
            self._pools[pool_key] = self._make_pool(
                training, batch_size, count_after(progress, before, total)
            )
        pool = None if pool_key is None else self._pools[pool_key]
        return replace(
            training.task, tokens=TokenCache(self._tokens[key].tokens, batch_size), pool=pool
        )

    def remove(self) -> None:
        """Delete what is in files."""
        for tokens in self._tokens.values():
            tokens.remove()
        for pool in self._pools.values():
            pool.remove()
        self._tokens = {}
        self._pools = {}

    def _views_of(self, pool_key: Key) -> Ints:
        """The views that any training looks at, as rows of a pool."""
        if pool_key not in self._views:
            views = [
                training.pooled_views
                for training in self.trainings
                if training.pool_key == pool_key
            ]
            self._views[pool_key] = functools.reduce(np.union1d, views)
        return self._views[pool_key]

    def _make_tokens(self, key: Key, batch_size: int, progress: Progress | None) -> TokenCache:
        encoder = load_encoder(key[0], n_tail_blocks=key[1], input_size=key[2]).to(self.device)
        file = self.scratch / f"{TOKENS}.{len(self._tokens)}"
        return cache_tokens(
            self.pixels, encoder, batch_size=batch_size, file=file, progress=progress
        )

    def _make_pool(
        self, training: Training, batch_size: int, progress: Progress | None
    ) -> ViewPool:
        assert training.pool_key is not None
        chosen = training.settings.of_method
        encoder = load_encoder(
            chosen.encoder, n_tail_blocks=chosen.n_tail_blocks, input_size=chosen.input_size
        )
        return pool_views(
            resident(self.pixels, self.device),
            encoder.to(self.device),
            chosen.training.views,
            generator=training.epoch_draws.for_pool(),
            only=self._views_of(training.pool_key),
            batch_size=batch_size,
            file=self.scratch / f"{VIEWS}.{len(self._pools)}",
            progress=progress,
        )
