"""The images of one dataset, decoded and moved to the device once for all cells that use them.

A `Task` holds what a method may see. The true classes are used for scoring and, under the protocol
'reference', by `selection.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.data.benchmarks import Part, read_benchmark
from shoal.data.benchmarks.benchmark import Benchmark
from shoal.data.collection import hold_out_validation
from shoal.data.pixels.loading import load_pixels, none_readable
from shoal.encoders.vision import CROP_RATIO, ImageRows
from shoal.methods.method import TrunkOutputs, trunk_key
from shoal.methods.registry import get_method
from shoal.reproduce.plan import Cell
from shoal.reproduce.selection import select_by_hidden_labels, with_hidden_classes
from shoal.training.inputs import Task, resident
from shoal.training.validation import ValidationSet


@dataclass(frozen=True)
class BenchmarkImages:
    """One part of a benchmark in memory; rows are images that could be decoded."""

    pixels: ImageRows
    names: tuple[str, ...]
    labels: Ints  # (N,) the labels that a user would have, -1 elsewhere
    truth: Ints  # (N,) the true classes, known ones first; for scoring
    is_known: Bools  # (N,) whether the true class is a known one; for scoring
    # The true K, for cells in which it is given
    n_classes: int
    benchmark: Benchmark


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset on a device, with a cache of what the frozen trunk has computed.

    A part is decoded when it is first used.
    """

    dataset: str
    root: Path | str
    device: torch.device
    input_size: int

    @cached_property
    def trunk_outputs(self) -> TrunkOutputs:
        return TrunkOutputs(pixels=self.train.pixels, device=self.device)

    @cached_property
    def train(self) -> BenchmarkImages:
        return self._read("train")

    @cached_property
    def test(self) -> BenchmarkImages:
        return self._read("test")

    def task(self, cell: Cell, *, with_pool: bool) -> Task:
        """Return what the method of a cell may see, with a pool of views if it is to train."""
        images = self.train
        labels = images.labels
        is_unsupervised = cell.setup == "unsupervised"
        if is_unsupervised:
            labels = np.full_like(labels, UNLABELED)
        is_k_given = is_unsupervised or cell.selection == "given"
        validation = self._validation(cell)
        task = Task(
            pixels=images.pixels,
            labels=labels,
            validation=validation,
            trains_on_validation=cell.setup != "inductive",
            validation_set=self._validation_set(validation) if cell.sees_hidden_labels else None,
            n_clusters=images.n_classes if is_k_given else None,
        )
        if cell.trained is None or get_method(cell.method).reads_images:
            return task
        if trunk_key(cell.trained) not in self.trunk_outputs.tokens:
            self.trunk_outputs.free()  # those of the previous cells
        return self.trunk_outputs.prepare(task, cell.trained, with_pool=with_pool)

    def _validation(self, cell: Cell) -> Ints | None:
        """Return the held-out rows for the cell's seed; None without labels to choose by."""
        share = cell.validation_share
        if cell.trained is None or cell.setup == "unsupervised" or share == 0:
            return None
        groups = self.train.labels
        rng = np.random.default_rng(cell.trained.training.seed)
        if cell.sees_hidden_labels:
            groups = with_hidden_classes(groups, self.train.truth)
        return hold_out_validation(groups, share=share, rng=rng)

    def _validation_set(self, validation: Ints | None) -> ValidationSet:
        """Return the images whose hidden labels choose the snapshot: in the inductive setup the
        validation images, else the test part."""
        if validation is None:
            return select_by_hidden_labels(self.test.pixels, self.test.truth, self.test.is_known)
        images = self.train
        return select_by_hidden_labels(
            images.pixels[validation], images.truth[validation], images.is_known[validation]
        )

    def _read(self, part: Part) -> BenchmarkImages:
        benchmark = read_benchmark(self.dataset, self.root, part=part)
        collection = benchmark.collection
        # Stored at the size from which the random crop has exactly the encoder's input size.
        pixels = load_pixels(collection, round(self.input_size / CROP_RATIO))
        if not len(pixels):
            raise none_readable(pixels.skipped)
        decoded = pixels.index
        return BenchmarkImages(
            pixels=resident(pixels, self.device),
            names=pixels.names,
            labels=collection.labels[decoded],
            truth=benchmark.truth[decoded],
            is_known=benchmark.is_known[decoded],
            n_classes=benchmark.split.n_classes,
            benchmark=benchmark,
        )


def check_dataset(dataset: str, root: Path | str, part: Part) -> None:
    """Refuse a part of a dataset with missing images; no image is decoded."""
    read_benchmark(dataset, root, part=part)
