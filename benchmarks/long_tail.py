"""What training does to novel classes, large and small: one training of CMS with all labels, looked at between epochs.

    python benchmarks/long_tail.py caltech101.zip                           # as `shoal discover` trains
    python benchmarks/long_tail.py caltech101.zip:30                        # no more than 30 images of each class
    python benchmarks/long_tail.py caltech101.zip --supervised-weight 0     # without the supervised term

Half of the classes are known, half of their images labeled. Clusters are those of Ward's tree of the embeddings, K
given, without shifts or links. Hidden labels explain here; they choose nothing.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from answers import draw, unpack
from shoal.arrays import Bools, Ints
from shoal.clustering.iterates import unit_tree
from shoal.clustering.matching import gcd_accuracy, match
from shoal.clustering.neighbors import k_nearest
from shoal.data.readers import read_collection
from shoal.device import choose_device
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.read_and_embed import decode
from shoal.discovery.reporter import SILENT
from shoal.methods.registry import get_method
from shoal.methods.task import Task

MOMENTS = (1, 2, 4, 8, 16)
"""Epochs after which embeddings are looked at, beside the last one."""

LARGE = 50
"""Images from which on a class is called large."""

N_NEIGHBORS = 8

HEADER = [
    "embeddings",
    "All / Known / Novel",
    "right, large novel classes / other",
    "cosine within, large novel / other",
    "8 neighbors of the same class, large novel / other",
]


def class_cosines(points: Tensor, truth: Ints) -> np.ndarray:
    """(C,) the mean cosine of two images of a class, for unit rows (N, D)."""
    members = torch.nn.functional.one_hot(torch.from_numpy(truth)).double()  # (N, C)
    n = members.sum(dim=0)
    sums = members.T @ points.double().cpu()  # (C, D)
    return ((sums.square().sum(dim=1) - n) / (n * (n - 1))).numpy()


def neighbor_purity(points: Tensor, truth: Ints) -> np.ndarray:
    """(N,) the share of an image's nearest ones that are of its class."""
    found = k_nearest(
        points, points, N_NEIGHBORS, exclude=torch.arange(len(points), device=points.device)
    )
    return (truth[found.indices.cpu().numpy()] == truth[:, None]).mean(axis=1)


def describe(
    name: str, points: Tensor, truth: Ints, is_known: Bools, is_unlabeled: Bools
) -> list[str]:
    """A row of the table."""
    clusters = unit_tree(points).cut(int(truth.max()) + 1)
    there = is_unlabeled
    scores = gcd_accuracy(truth[there], clusters[there], is_known[there])
    matched = match(truth[there], clusters[there])
    class_of = dict(zip(matched.clusters.tolist(), matched.classes.tolist(), strict=True))
    is_right = np.array([class_of.get(cluster, -1) for cluster in clusters.tolist()]) == truth
    sizes = np.bincount(truth)
    is_large = sizes[truth] >= LARGE
    of_novel = [~is_known & is_large, ~is_known & ~is_large]
    cosines = class_cosines(points, truth)
    purity = neighbor_purity(points, truth)

    def both(values: list[float], form: str) -> str:
        return " / ".join("–" if np.isnan(value) else format(value, form) for value in values)

    def mean(values: np.ndarray) -> float:
        return float(values.mean()) if len(values) else float("nan")

    return [
        name,
        both([100 * scores.all, 100 * scores.known, 100 * scores.novel], ".1f"),
        both([100 * mean(is_right[those]) for those in of_novel], ".1f"),
        both([mean(cosines[np.unique(truth[those])]) for those in of_novel], ".2f"),
        both([100 * mean(purity[those]) for those in of_novel], ".1f"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--supervised-weight", type=float)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        collection = read_collection(unpack(arguments.archive, Path(folder)))
        truth = np.array(collection.labels)
        known, labels = draw(truth, 0.5, 0.5, arguments.seed)
        settings = choose_settings(
            n_clusters=int(truth.max()) + 1, seed=arguments.seed, epochs=arguments.epochs
        )
        chosen = settings.of_method
        if arguments.supervised_weight is not None:
            chosen = replace(
                chosen, loss=replace(chosen.loss, supervised_weight=arguments.supervised_weight)
            )
        task = Task(
            pixels=decode(collection, settings, SILENT).pixels,
            labels=labels,
            n_clusters=settings.n_clusters,
        )
        is_known = np.isin(truth, known)
        is_unlabeled = labels < 0
        sizes = np.bincount(truth)
        large = [one for one in np.setdiff1d(np.arange(len(sizes)), known) if sizes[one] >= LARGE]
        print(
            f"{sizes[large].sum():,} of {(~is_known).sum():,} novel images lie in {len(large)} large classes\n"
        )
        print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")

        def show(name: str, points: Tensor) -> None:
            print(
                "| " + " | ".join(describe(name, points, truth, is_known, is_unlabeled)) + " |",
                flush=True,
            )

        def look(epoch: int, points: Tensor, predicted: Ints | None) -> bool:
            if epoch in MOMENTS:
                show(f"after {epoch} of {chosen.training.epochs} epochs", points)
            return True

        learned = get_method("cms").represent(task, chosen, device=device, goes_on=look)
        show("at the end", learned.embeddings)
        show("the encoder as it came", learned.embed_frozen())


if __name__ == "__main__":
    main()
