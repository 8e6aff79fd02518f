"""The images of one dataset, decoded and moved to the device once for all cells that use them.

What a method may see comes out as a `Task`. The truth is for scoring alone and, under the protocol
'reference', for `selection.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.checksums import digest_names
from shoal.data.benchmarks import Part, read_benchmark
from shoal.data.pixels import load_pixels
from shoal.data.splits import hold_out_validation
from shoal.encoders.embed import CROP_RATIO, ImageRows
from shoal.methods.registry import get_method
from shoal.methods.trunk import Trunk, split_of
from shoal.reproduce.plan import Cell
from shoal.reproduce.selection import draw_by_hidden_classes, judge_by_hidden_labels
from shoal.training.task import Task
from shoal.training.tokens import resident
from shoal.training.validation import Judge

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
    """A dataset on a device. Parts are read when they are first asked for.

    What the trunk has computed for the last cell is there for the next one.
    """

    def __init__(self, dataset: str, root: Path, *, device: torch.device, input_size: int) -> None:
        self.dataset = dataset
        self.root = root
        self.device = device
        self.input_size = input_size

    @cached_property
    def trunk(self) -> Trunk:
        """What the trunk has computed of the training part."""
        return Trunk(pixels=self.train.pixels, device=self.device, batch_size=TOKEN_BATCH)

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
            getattr(self, part)

    def task(self, cell: Cell, *, with_pool: bool) -> Task:
        """What the method of a cell may see, with the pool of views if it is to be trained."""
        images = self.train
        labels = images.labels
        is_unsupervised = cell.setup == "unsupervised"
        if is_unsupervised:
            labels = np.full(len(labels), UNLABELED, dtype=np.int64)
        is_given = is_unsupervised or cell.selection == "given"
        validation = self._validation(cell)
        task = Task(
            pixels=images.pixels,
            labels=labels,
            validation=validation,
            trains_on_validation=cell.setup != "inductive",
            judge=self._judge(cell, validation),
            n_clusters=images.n_classes if is_given else None,
        )
        if cell.trained is None or get_method(cell.method).reads_images:
            return task
        for split in [*self.trunk.tokens]:
            if split != split_of(cell.trained):
                self.trunk.drop(split)
        return self.trunk.prepare(task, cell.trained, with_pool=with_pool)

    def stopping_labels(self, cell: Cell) -> Ints:
        """(N,) the labels that say when to stop shifting.

        The released code, inductive, takes hidden ones as well.
        """
        if cell.sees_hidden_labels and cell.setup == "inductive":
            return np.where(self.train.is_known, self.train.truth, UNLABELED)
        return self.train.labels

    def _validation(self, cell: Cell) -> Ints | None:
        """The rows set aside for the cell's seed; none where there are no labels to choose by."""
        share = cell.validation_share
        if cell.trained is None or cell.setup == "unsupervised" or share == 0:
            return None
        labels = self.train.labels
        rng = np.random.default_rng(cell.trained.training.seed)
        if cell.sees_hidden_labels:
            return draw_by_hidden_classes(labels, self.train.truth, share=share, rng=rng)
        return hold_out_validation(labels, share=share, rng=rng).validation

    def _judge(self, cell: Cell, validation: Ints | None) -> Judge | None:
        """The images whose hidden labels choose, where a cell's protocol lets them."""
        if not cell.sees_hidden_labels:
            return None
        if cell.setup != "inductive":
            return judge_by_hidden_labels(self.test.pixels, self.test.truth, self.test.is_known)
        assert validation is not None
        images = self.train
        return judge_by_hidden_labels(
            images.pixels[validation], images.truth[validation], images.is_known[validation]
        )

    def _read(self, part: Part) -> BenchmarkImages:
        benchmark = read_benchmark(self.dataset, self.root, part=part)
        collection = benchmark.collection
        # Images are kept at the size from which the random crop has exactly the encoder's input.
        pixels = load_pixels(collection, round(self.input_size / CROP_RATIO))
        kept = pixels.index
        return BenchmarkImages(
            pixels=resident(pixels, self.device),
            names=tuple(collection.names[row] for row in kept),
            labels=collection.labels[kept],
            truth=benchmark.truth.labels[kept],
            is_known=benchmark.truth.is_known[kept],
            n_classes=benchmark.n_clusters,
            n_skipped=len(collection) - len(kept),
            notes=collection.notes,
            split_sha256=benchmark.split.sha256,
            names_sha256=digest_names(collection.names, collection.labels),
        )


def read_names_sha256(dataset: str, root: Path, part: Part = "train") -> str:
    """The checksum of a part of a dataset, from its lists; no image is decoded."""
    collection = read_benchmark(dataset, root, part=part).collection
    return digest_names(collection.names, collection.labels)


def count_dataset(dataset: str, root: Path) -> tuple[dict[str, list[float]], list[str]]:
    """The numbers of known and novel classes and of training images, and notes on these.

    No image is decoded.
    """
    benchmark = read_benchmark(dataset, root)
    n_known = len(benchmark.split.known)
    counts = {
        "classes": [float(n_known), float(benchmark.n_clusters - n_known)],
        "images": [float(len(benchmark.collection))],
    }
    return counts, list(benchmark.collection.notes)
