"""The images of one dataset, decoded once and brought to the device once, for all cells that use them.

What a method may see comes out as a `Task`; the truth is for `scoring.py` alone.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.data.benchmarks import Part, read_benchmark
from shoal.data.pixels import load_pixels
from shoal.data.splits import hold_out_validation
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import CROP_RATIO, ImageRows, Progress
from shoal.methods.method import Task
from shoal.reproduce.experiment import Cell
from shoal.training.tokens import TokenCache, cache_tokens, resident

TOKEN_BATCH = 256
"""Images that go through the trunk together."""


@dataclass(frozen=True, eq=False)
class Images:
    """One part of a benchmark in memory; rows are images that could be decoded."""

    pixels: ImageRows
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


class Stage:
    """A dataset on a device. Parts are read when they are first asked for; one set of tokens is kept at a time."""

    def __init__(
        self,
        dataset: str,
        root: Path,
        *,
        device: torch.device,
        input_size: int,
        scratch: Path,
        progress: Progress | None = None,
    ) -> None:
        self.dataset, self.root, self.device, self.progress = dataset, root, device, progress
        # Images are kept at the size from which the random crop has exactly the encoder's input.
        self.pixel_size = round(input_size / CROP_RATIO)
        self.scratch = scratch
        self._tokens: tuple[tuple[Any, ...], TokenCache] | None = None

    @cached_property
    def train(self) -> Images:
        """The training part: labeled and unlabeled images."""
        return self._read("train")

    @cached_property
    def test(self) -> Images:
        """The official test part."""
        return self._read("test")

    def task(self, cell: Cell) -> Task:
        """What the method of a cell may see."""
        images = self.train
        labels = images.labels
        if cell.setup == "unsupervised":
            labels = np.full(len(labels), UNLABELED, dtype=np.int64)
        is_given = cell.setup == "unsupervised" or cell.selection == "given"
        return Task(
            pixels=images.pixels,
            labels=labels,
            validation=self.validation(cell),
            trains_on_validation=cell.setup != "inductive",
            n_clusters=images.n_classes if is_given else None,
            tokens=self.tokens(cell.settings),
        )

    def validation(self, cell: Cell) -> Ints | None:
        """The rows set aside for the cell's seed; none where there are no labels to choose by."""
        if cell.setup == "unsupervised" or not hasattr(cell.settings, "training"):
            return None
        rng = np.random.default_rng(cell.settings.training.seed)
        return hold_out_validation(self.train.labels, share=cell.validation_share, rng=rng).validation

    def tokens(self, settings: Any) -> TokenCache | None:
        """The trunk's tokens for an encoder, from the last cell if it used the same; none where nothing is trained."""
        if not hasattr(settings, "training"):
            return None
        key = (settings.encoder, settings.n_tail_blocks, settings.input_size)
        if self._tokens is None or self._tokens[0] != key:
            self.close()
            encoder = load_encoder(key[0], n_tail_blocks=key[1], input_size=key[2]).to(self.device)
            file = self.scratch / f"{self.dataset}-tokens.npy"
            found = cache_tokens(self.train.pixels, encoder, batch_size=TOKEN_BATCH, file=file)
            self._tokens = (key, found)
        return self._tokens[1]

    def close(self) -> None:
        """Let go of the tokens, and of their file where they have one."""
        if self._tokens is not None:
            self._tokens[1].remove()
            self._tokens = None

    def _read(self, part: Part) -> Images:
        benchmark = read_benchmark(self.dataset, self.root, part=part)
        found = load_pixels(benchmark.collection, self.pixel_size, progress=self.progress)
        kept = found.index
        return Images(
            pixels=resident(found[:], self.device),
            labels=benchmark.collection.labels[kept],
            truth=benchmark.truth.labels[kept],
            is_known=benchmark.truth.is_known[kept],
            n_classes=benchmark.n_clusters,
            n_skipped=len(found.skipped),
            notes=benchmark.collection.notes,
        )
