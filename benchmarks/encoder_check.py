"""How well an encoder sees known classes, by given labels, beside how right its answer is.

    python benchmarks/encoder_check.py embeddings/cub_224.npz embeddings/cub_64.npz --most 1500

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Half of the classes are known, and half of their images labeled; K is given.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from clustering import header, write
from n_clusters_rules import draw_labels
from shoal.arrays import UNLABELED
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.sums import unit_points
from shoal.discovery.cluster_embeddings import ClusterSettings
from shoal.discovery.first_answer import nearest_label_accuracy

N_FEW = 5
COLUMNS = (
    "embeddings",
    "nearest labeled image alike",
    "by chance",
    "share",
    "share, five labels a class",
    "All",
)


def measure(rows: np.ndarray, y: np.ndarray, most: int, seed: int) -> list[float]:
    """Accuracy of nearest labeled images, chance, share of the way, that with few labels, and All of the answer."""
    kept = np.random.default_rng(seed).permutation(len(y))[:most]
    truth = np.unique(y[kept], return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    n_classes = int(truth.max()) + 1
    truth = np.argsort(rng.permutation(n_classes))[truth]
    n_known = n_classes // 2
    labels = draw_labels(truth, np.arange(n_known), 0.5, rng)
    points = unit_points(rows[kept])
    few = labels.copy()
    for one in range(n_known):
        few[np.flatnonzero(labels == one)[N_FEW:]] = UNLABELED
    found = nearest_label_accuracy(points.float(), labels)
    of_few = nearest_label_accuracy(points.float(), few)
    clusters = infer(points, labels, n_classes, ClusterSettings().inference).labels
    free = labels == UNLABELED
    accuracy = gcd_accuracy(truth[free], clusters[free], truth[free] < n_known)
    return [found.accuracy, found.chance, found.share, of_few.share, accuracy.all]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=1500, help="images drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="file to append the table to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for file in args.files:
        with np.load(file) as stored:
            found = measure(stored["X"], stored["y"], args.most, args.seed)
        table.append(f"| {file.stem} | {' | '.join(f'{value:.3f}' for value in found)} |")
        print(table[-1], file=sys.stderr, flush=True)
    write([*header(sys.argv), "\n".join(table)], args.record)


if __name__ == "__main__":
    main()
