"""Outputs of the frozen trunk for one collection, shared by all training runs on it: tokens, and
pools of views.

Training runs share tokens if they split the same encoder at the same block, and a pool if they
sample the same views. N images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Ints, digest_rows
from shoal.data.pixels.loading import Pixels
from shoal.device import describe_device
from shoal.distributed import n_local, world_size
from shoal.encoders.catalog import load_encoder
from shoal.encoders.vision import ImageRows
from shoal.methods.method import TrainedSettings
from shoal.progress import Progress, count_after
from shoal.runs import environment
from shoal.training.inputs import Task, TokenCache, ViewPool, cache_tokens, pool_views, resident
from shoal.training.sampling import POOL, Sampler

# An encoder, how many of its last blocks are trained, and its input size
TrunkKey = tuple[str, int | None, int | None]


@dataclass(kw_only=True)
class TrunkOutputs:
    """Tokens of N images by trunk, and the last requested pool of views of each trunk."""

    pixels: ImageRows
    device: torch.device
    tokens: dict[TrunkKey, Tensor] = field(default_factory=dict)
    pools: dict[TrunkKey, tuple[object, ViewPool]] = field(default_factory=dict)

    def prepare(
        self,
        task: Task,
        settings: TrainedSettings,
        planned: Sequence[tuple[Task, TrainedSettings]] = (),
        *,
        with_pool: bool = True,
        progress: Progress | None = None,
    ) -> Task:
        """Return the task with tokens and pool; `progress` counts images and views that have to be
        computed.

        The pool holds the views that all `planned` training runs use, of which this is one.
        """
        key = trunk_key(settings)
        training = settings.training
        has_pool = with_pool and training.views.pool is not None
        pool_key = ""
        views = np.empty(0, dtype=np.int64)
        if has_pool:
            used = _used_views(planned or [(task, settings)], settings)
            pool_key = f"{training.views} {training.seed} {digest_rows(used)}"
            if key not in self.pools or self.pools[key][0] != pool_key:
                views = used
        is_missing = key not in self.tokens
        if is_missing or len(views):
            encoder = load_encoder(
                settings.encoder,
                n_tail_blocks=settings.n_tail_blocks,
                input_size=settings.input_size,
            ).to(self.device)
            pixels = resident(self.pixels, self.device)
        n_views = n_local(len(views))
        n_images = n_local(len(self.pixels)) if is_missing else 0
        total = n_views + n_images
        if len(views):
            self.pools.pop(key, None)  # its memory is needed
            cache_key = None
            # A GPU computes views faster than a disk reads them.
            if self.device.type == "cpu" and world_size() == 1 and isinstance(self.pixels, Pixels):
                cache_key = (
                    f"{self.pixels.checksum} {pool_key} {encoder.identity()} {encoder} "
                    f"{describe_device(self.device)} {environment()}"
                )
            pool = pool_views(
                pixels,
                encoder,
                training.views,
                generator=Sampler(task.training_labels, training).generator(POOL),
                only=views,
                # Views come first, so that cached ones do not distort the time left.
                progress=count_after(progress, 0, total),
                cache_key=cache_key,
            )
            self.pools[key] = (pool_key, pool)
        if is_missing:
            counted = count_after(progress, n_views, total)
            self.tokens[key] = cache_tokens(pixels, encoder, counted).tokens
        if isinstance(self.pixels, Pixels):
            self.pixels.unload()  # training needs only the tokens
        return replace(
            task,
            tokens=TokenCache(self.tokens[key]),
            pool=self.pools[key][1] if has_pool else None,
        )

    def free(self) -> None:
        self.tokens.clear()
        self.pools.clear()


def trunk_key(settings: TrainedSettings) -> TrunkKey:
    return settings.encoder, settings.n_tail_blocks, settings.input_size


def _used_views(planned: Sequence[tuple[Task, TrainedSettings]], settings: TrainedSettings) -> Ints:
    """Return the views of a pool that are used by the planned training runs that sample views as
    one with these settings does."""
    views = np.empty(0, dtype=np.int64)
    training = settings.training
    for task, other in planned:
        is_same = (other.training.views, other.training.seed) == (training.views, training.seed)
        if is_same and trunk_key(other) == trunk_key(settings):
            used = Sampler(task.training_labels, other.training).pooled_views(task.training)
            views = np.union1d(views, used)
    return views
