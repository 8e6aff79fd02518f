"""How far confidence is from the truth: the share of neighbors before, the calibrated one after.

    python benchmarks/confidence.py embeddings/cub.npz embeddings/cifar100.npz --most 3000 --seeds 3

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Each seed draws at most `--most` images, half of the classes as known and labels half of the images of these. The
collection is clustered as `shoal cluster` does, with K estimated. Of the unlabeled images, an image is right in a known
category if it is of its class; in a novel one by the share of the category's images that are of its class. The gap is
that between the mean said and the mean true in each of ten bins of what was said, weighed by the images in it.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from clustering import header, write
from n_clusters_rules import draw_labels
from shoal.arrays import UNLABELED
from shoal.clustering.categories import other_neighbors, same_category_share
from shoal.clustering.inference import infer
from shoal.clustering.sums import unit_points
from shoal.discovery.cluster_embeddings import ClusterSettings
from shoal.discovery.named_categories import name_categories
from shoal.methods.clusters import as_discovery

N_BINS = 10
PARTS = ("all", "known", "novel")
CLEAR = 0.005
"""What a gap must be larger by to count as farther from the truth."""


def gap(said: np.ndarray, true: np.ndarray) -> float:
    """The mean gap between said (M,) and true (M,), over ten bins of what was said."""
    bins = np.minimum((said * N_BINS).astype(int), N_BINS - 1)
    if not len(said):
        return float("nan")
    off = [abs(said[bins == b].sum() - true[bins == b].sum()) for b in range(N_BINS)]
    return float(sum(off) / len(said))


def farther(gaps: np.ndarray) -> str:
    """In how many draws (S, 2) the gap is larger after than before, and by how much at most."""
    excess = gaps[:, 1] - gaps[:, 0]
    n_farther = int((excess > CLEAR).sum())
    return f"{n_farther} of {len(gaps)}" + (f", by up to {excess.max():.3f}" if n_farther else "")


def truth_of(categories: np.ndarray, y: np.ndarray, n_known: int) -> np.ndarray:
    """(N,) how right each image is: 0 or 1 in a known category, the share of its class in a novel one."""
    right = (categories == y).astype(float)
    for category in np.unique(categories[categories >= n_known]):
        rows = np.flatnonzero(categories == category)
        right[rows] = np.bincount(y[rows])[y[rows]] / len(rows)
    return right


def measure(
    rows: np.ndarray,
    y: np.ndarray,
    most: int,
    seed: int,
    n_classes: int | None = None,
    n_known: int | None = None,
) -> np.ndarray:
    """(3, 2) gaps on all unlabeled images, those in known and in novel categories, before and after."""
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(np.unique(y))[:n_classes]
    kept = np.sort(rng.permutation(np.flatnonzero(np.isin(y, drawn)))[:most])
    order = rng.permutation(np.unique(y[kept]))  # the known classes first
    truth = np.argsort(order)[np.searchsorted(np.sort(order), y[kept])]
    n_known = n_known or len(order) // 2
    labels = draw_labels(truth, np.arange(n_known), 0.5, rng)
    points = unit_points(rows[kept])
    settings = ClusterSettings()
    discovery = as_discovery(infer(points, labels, None, settings.inference), points)
    n_neighbors = settings.inference.shift.n_neighbors
    names = [f"{i:06d}" for i in kept]
    classes = [f"class {c:04d}" for c in range(n_known)]
    found = name_categories(discovery, names, labels, classes, n_neighbors=n_neighbors)
    share = same_category_share(other_neighbors(points, n_neighbors), found.categories)
    right = truth_of(found.categories, truth, n_known)
    free = labels == UNLABELED
    of = {
        "all": free,
        "known": free & (found.categories < n_known),
        "novel": free & (found.categories >= n_known),
    }
    return np.array(
        [
            [gap(said[of[p]], right[of[p]]) for said in (share, found.members.confidence)]
            for p in PARTS
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=3000, help="images drawn for each seed")
    parser.add_argument("--classes", type=int, help="classes drawn for each seed; all if absent")
    parser.add_argument("--known", type=int, help="how many of them are known; half if absent")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path, help="file to append the table to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    columns = [*(f"{part}, before → after" for part in PARTS), f"farther by more than {CLEAR}"]
    table = [f"| collection | {' | '.join(columns)} |", "|---" * 5 + "|"]
    for file in args.files:
        with np.load(file) as stored:
            rows = stored["X"]
            y = np.unique(stored["y"], return_inverse=True)[1]
        how = (args.classes, args.known)
        gaps = np.array(
            [measure(rows, y, args.most, seed, *how) for seed in range(args.seeds)]
        )  # (S, 3, 2)
        means = [f"{before:.3f} → {after:.3f}" for before, after in np.nanmean(gaps, axis=0)]
        table.append(f"| {file.stem} | {' | '.join([*means, farther(gaps[:, 0])])} |")
        print(table[-1], file=sys.stderr, flush=True)
    write([*header(sys.argv), "\n".join(table)], args.record)


if __name__ == "__main__":
    main()
