"""The images of one dataset, decoded once and brought to the device once, for all cells that use them.

What a method may see comes out as a `Task`. The truth is for `scoring.py` alone and, under the protocol 'reference',
for `selection.py`.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.checksums import digest_names, digest_rows
from shoal.data.benchmarks import Part, read_benchmark
from shoal.data.collection import Collection
from shoal.data.pixels import load_pixels
from shoal.data.splits import hold_out_validation
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import CROP_RATIO, ImageRows
from shoal.files import atomic_file
from shoal.methods.task import Task
from shoal.progress import Progress
from shoal.reproduce.plan import Cell
from shoal.reproduce.selection import draw_by_hidden_classes, judge_by_hidden_labels
from shoal.training.data import TrainingData
from shoal.training.epoch_draws import EpochDraws
from shoal.training.tokens import Kept, TokenCache, cache_tokens, resident
from shoal.training.validation import Judge
from shoal.training.view_pool import ViewPool, pool_views

TOKEN_BATCH = 256
"""Images that go through the trunk together."""


@dataclass(frozen=True, eq=False)
class BenchmarkImages:
    """One part of a benchmark in memory; rows are images that could be decoded."""

    pixels: ImageRows
    names: tuple[str, ...]
    labels: Ints
    """(N,) those a user would have, -1 elsewhere."""
    truth: Ints
    """(N,) the true classes, known ones first; for scorers."""
    is_known: Bools
    """(N,) whether the true class is a known one; for scorers."""
    n_classes: int
    """The true K, for protocols in which it is given."""
    n_skipped: int
    notes: tuple[str, ...]
    split_sha256: str
    """Checksum of the known/novel split that these labels follow."""
    names_sha256: str
    """Checksum of the images' names and labels."""


class LoadedDataset:
    """A dataset on a device. Parts are read when they are first asked for; one set of tokens is kept at a time.

    In the folder `shared`, where there is one, pixels and tokens are kept for other processes with the same images: it
    must be one that nobody with other images has used.
    """

    def __init__(
        self,
        dataset: str,
        root: Path,
        *,
        device: torch.device,
        input_size: int,
        scratch: Path,
        shared: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.dataset = dataset
        self.root = root
        self.device = device
        self.progress = progress
        # Images are kept at the size from which the random crop has exactly the encoder's input.
        self.input_size = input_size
        self.pixel_size = round(input_size / CROP_RATIO)
        self.scratch = scratch
        self.shared = shared
        self._tokens: tuple[tuple[Any, ...], TokenCache] | None = None
        self._pool: tuple[tuple[Any, ...], ViewPool] | None = None

    @cached_property
    def train(self) -> BenchmarkImages:
        """The training part: labeled and unlabeled images."""
        return self._read("train")

    @cached_property
    def test(self) -> BenchmarkImages:
        """The official test part."""
        return self._read("test")

    def read(self, parts: Iterable[Part]) -> None:
        """Decode these parts now."""
        for part in parts:
            _ = self.train if part == "train" else self.test

    def task(self, cell: Cell, *, with_pool: bool = True) -> Task:
        """What the method of a cell may see; the pool of views only where it is about to be trained."""
        images = self.train
        labels = images.labels
        if cell.setup == "unsupervised":
            labels = np.full(len(labels), UNLABELED, dtype=np.int64)
        is_given = cell.setup == "unsupervised" or cell.selection == "given"
        task = Task(
            pixels=images.pixels,
            labels=labels,
            validation=self.validation(cell),
            trains_on_validation=cell.setup != "inductive",
            judge=self.judge(cell),
            n_clusters=images.n_classes if is_given else None,
            tokens=self.tokens(cell.settings),
        )
        return replace(task, pool=self.pool(cell.settings, task)) if with_pool else task

    def validation(self, cell: Cell) -> Ints | None:
        """The rows set aside for the cell's seed; none where there are no labels to choose by."""
        share = cell.validation_share
        if cell.setup == "unsupervised" or not hasattr(cell.settings, "training") or share == 0:
            return None
        rng = np.random.default_rng(cell.settings.training.seed)
        if cell.sees_hidden_labels:
            return draw_by_hidden_classes(self.train.labels, self.train.truth, share=share, rng=rng)
        return hold_out_validation(self.train.labels, share=share, rng=rng).validation

    def judge(self, cell: Cell) -> Judge | None:
        """The images whose hidden labels choose, where a cell's protocol lets them."""
        if not cell.sees_hidden_labels:
            return None
        if cell.setup != "inductive":
            return judge_by_hidden_labels(self.test.pixels, self.test.truth, self.test.is_known)
        rows = self.validation(cell)
        images = self.train
        assert rows is not None
        return judge_by_hidden_labels(
            images.pixels[rows], images.truth[rows], images.is_known[rows]
        )

    def stopping_labels(self, cell: Cell) -> Ints:
        """(N,) the labels that say when to stop shifting; the released code, inductive, takes hidden ones as well."""
        if cell.sees_hidden_labels and cell.setup == "inductive":
            return np.where(self.train.is_known, self.train.truth, UNLABELED)
        return self.train.labels

    def tokens(self, settings: Any) -> TokenCache | None:
        """The trunk's tokens for an encoder, from the last cell if it used the same; none where nothing is trained."""
        if not hasattr(settings, "training"):
            return None
        key = (settings.encoder, settings.n_tail_blocks, settings.input_size)
        if self._tokens is None or self._tokens[0] != key:
            self.close()
            file = self.scratch / f"{self.dataset}-tokens.npy"

            def make() -> Kept:
                encoder = load_encoder(key[0], n_tail_blocks=key[1], input_size=key[2]).to(
                    self.device
                )
                return cache_tokens(
                    self.train.pixels, encoder, batch_size=TOKEN_BATCH, file=file
                ).tokens

            self._tokens = (key, TokenCache(self._once(key, make), TOKEN_BATCH))
        return self._tokens[1]

    def pool(self, settings: Any, data: TrainingData) -> ViewPool | None:
        """The pool of views that the training on this data would make, from the last cell if it used the same."""
        if not hasattr(settings, "training") or settings.training.views.pool is None:
            return None
        views = settings.training.views
        epoch_draws = EpochDraws(
            data.training_labels, settings.training, embeds_views=settings.embeds_views
        )
        only = epoch_draws.pooled_views(data.training)
        who = (settings.encoder, settings.n_tail_blocks, settings.input_size)
        key = (*who, views, epoch_draws.settings.seed, digest_rows(only))
        if self._pool is None or self._pool[0] != key:
            self._close_pool()
            file = self.scratch / f"{self.dataset}-views.npy"

            def make() -> Kept:
                encoder = load_encoder(who[0], n_tail_blocks=who[1], input_size=who[2]).to(
                    self.device
                )
                how: dict[str, Any] = {
                    "generator": epoch_draws.for_pool(),
                    "only": only,
                    "batch_size": TOKEN_BATCH,
                }
                return pool_views(self.train.pixels, encoder, views, **how, file=file).tokens

            made = torch.from_numpy(only).to(self.device)
            self._pool = (key, ViewPool(self._once(key, make), views.pool, made))
        return self._pool[1]

    def close(self) -> None:
        """Let go of the tokens, and of their files where they have one."""
        if self._tokens is not None:
            self._tokens[1].remove()
            self._tokens = None
        self._close_pool()

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool[1].remove()
            self._pool = None

    def _once(self, key: tuple[Any, ...], make: Callable[[], Kept]) -> Kept:
        """Make tokens, or take them from the shared folder, where they are left for others."""
        if self.shared is None:
            return make()
        name = hashlib.sha256(repr((self.dataset, self.pixel_size, *key)).encode()).hexdigest()[:16]
        file = self.shared / f"{self.dataset}-tokens-{name}.npy"
        if file.exists():
            return torch.from_numpy(np.load(file)).to(self.device)
        made = make()
        _save(file, made.cpu().numpy() if isinstance(made, torch.Tensor) else made)
        return made

    def _pixels(self, part: Part, collection: Collection) -> tuple[ImageRows, Ints]:
        """All images that can be decoded, and their rows in the collection; from the shared folder where they are."""
        if self.shared is None:
            decoded = load_pixels(collection, self.pixel_size, progress=self.progress)
            return decoded, decoded.index
        file = self.shared / f"{self.dataset}-{part}-{self.pixel_size}.npy"
        rows = file.with_suffix(".rows.npy")
        if not file.exists():
            decoded = load_pixels(collection, self.pixel_size, progress=self.progress)
            _save(rows, decoded.index)
            _save(file, decoded[:])  # the last: where it is, so is the other
        return np.load(file, mmap_mode="r"), np.load(rows)

    def _read(self, part: Part) -> BenchmarkImages:
        benchmark = read_benchmark(self.dataset, self.root, part=part)
        pixels, kept = self._pixels(part, benchmark.collection)
        return BenchmarkImages(
            pixels=resident(pixels, self.device),
            names=tuple(benchmark.collection.names[row] for row in kept),
            labels=benchmark.collection.labels[kept],
            truth=benchmark.truth.labels[kept],
            is_known=benchmark.truth.is_known[kept],
            n_classes=benchmark.n_clusters,
            n_skipped=len(benchmark.collection) - len(kept),
            notes=benchmark.collection.notes,
            split_sha256=benchmark.split.sha256,
            names_sha256=digest_names(benchmark.collection.names, benchmark.collection.labels),
        )


def read_names_sha256(dataset: str, root: Path, part: Part = "train") -> str:
    """The checksum of a part of a dataset: all of its lists are read, and no image of it is decoded."""
    collection = read_benchmark(dataset, root, part=part).collection
    return digest_names(collection.names, collection.labels)


def count_dataset(dataset: str, root: Path) -> dict[str, Any]:
    """The known and novel classes and the images of the training part, from its lists; no image is decoded."""
    benchmark = read_benchmark(dataset, root)
    n_known = len(benchmark.split.known)
    return {
        "classes": (n_known, benchmark.n_clusters - n_known),
        "images": (len(benchmark.collection),),
        "notes": benchmark.collection.notes,
    }


def _save(file: Path, array: NDArray[Any]) -> None:
    with atomic_file(file) as opened:
        np.save(opened, array)
