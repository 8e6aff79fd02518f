"""Time the parts between embeddings and categories beside what they replace.

    python benchmarks/clustering.py knn           # faiss-cpu's IndexFlatIP, neighbors compared
    python benchmarks/clustering.py sweep         # a loop that cuts and counts for each K
    python benchmarks/clustering.py algorithm1 --n 50000 --d 256

`--record FILE` appends the tables with command, commit and hardware. Data are synthetic.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster
from scipy.optimize import linear_sum_assignment

from records import header, write
from shoal.clustering import inference
from shoal.clustering.curve import accuracy_curve
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage


def make_clusters(
    n: int, d: int, n_classes: int, noise: float, seed: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Unit rows around random centers, and the class of each."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=generator)
    centers = torch.randn(n_classes, d, generator=generator)
    rows = centers[y] + noise * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(rows, dim=1), y.numpy()


def timed(work: Callable[[], Any], repeats: int, device: str = "cpu") -> tuple[Any, float, float]:
    """The result, and the least wall and CPU seconds of several runs."""
    walls = []
    cpus = []
    for _ in range(repeats):
        wall = time.perf_counter()
        cpu = time.process_time()
        result = work()
        if device != "cpu":
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return result, min(walls), min(cpus)


def time_knn(args: argparse.Namespace) -> list[str]:
    import faiss

    faiss.omp_set_num_threads(args.threads)
    n = args.n or 10_000
    d = args.d or 768
    rows, _ = make_clusters(n, d, 200, 1.45, args.seed)
    own = torch.arange(n)
    index = faiss.IndexFlatIP(d)
    index.add(rows.numpy())
    ours, wall, cpu = timed(lambda: k_nearest(rows, rows, 8, exclude=own), args.repeats)
    _, raw_wall, raw_cpu = timed(
        lambda: k_nearest(rows, rows, 8, exclude=own, exact=False), args.repeats
    )
    (_, theirs), faiss_wall, faiss_cpu = timed(lambda: index.search(rows.numpy(), 9), args.repeats)
    # faiss may rank a duplicate before the row itself, so the row is left out by its index.
    others = np.array([line[line != i][:8] for i, line in enumerate(theirs)])
    same = float((others == ours.indices.numpy()).all(axis=1).mean())
    return [
        f"kNN, k = 8, {n:,} x {d}, {args.threads} threads, best of {args.repeats}",
        "| search | wall s | CPU s | speed against faiss (wall) |",
        "|---|---|---|---|",
        f"| shoal, exact | {wall:.2f} | {cpu:.2f} | {faiss_wall / wall:.1f} x |",
        f"| shoal, exact=False | {raw_wall:.2f} | {raw_cpu:.2f} | {faiss_wall / raw_wall:.1f} x |",
        f"| faiss-cpu IndexFlatIP | {faiss_wall:.2f} | {faiss_cpu:.2f} | 1 |",
        f"rows with identical neighbors in identical order: {same:.4%}",
    ]


def count_per_k(linkage: np.ndarray, labels: np.ndarray, largest: int) -> list[float]:
    """As the released code: for each K cut, count image by image, and match."""
    labeled = np.flatnonzero(labels >= 0)
    n_classes = int(labels.max()) + 1
    accuracies = []
    for k in range(n_classes, largest + 1):
        clusters = fcluster(linkage, k, "maxclust")
        width = max(k + 1, n_classes)
        counts = np.zeros((width, width), dtype=np.int64)
        for i in labeled:
            counts[clusters[i], labels[i]] += 1
        rows, columns = linear_sum_assignment(counts, maximize=True)
        accuracies.append(counts[rows, columns].sum() / len(labeled))
    return accuracies


def time_sweep(args: argparse.Namespace) -> list[str]:
    n = args.n or 10_000
    largest = 1000
    rows, y = make_clusters(n, args.d or 64, 100, 1.4, args.seed)
    rng = np.random.default_rng(args.seed)
    labels = np.where((y < 80) & (rng.random(n) < 0.5), y, -1)
    linkage, tree_wall, _ = timed(lambda: ward_linkage(rows), 1)
    tree = Tree(linkage)
    curve, wall, cpu = timed(
        lambda: accuracy_curve(tree, labels, max_clusters=largest), args.repeats
    )
    slow, slow_wall, slow_cpu = timed(lambda: count_per_k(linkage, labels, largest), 1)
    same = bool(np.allclose(slow, curve.accuracy, rtol=0, atol=1e-12))
    return [
        f"K sweep, {n:,} points, {(labels >= 0).sum():,} labeled, 80 known of 100 classes, "
        f"K = 80 to {largest:,}",
        "| sweep | wall s | CPU s | speed |",
        "|---|---|---|---|",
        f"| shoal, all rules' statistics | {wall:.3f} | {cpu:.3f} | {slow_wall / wall:.0f} x |",
        f"| cut and count per K | {slow_wall:.2f} | {slow_cpu:.2f} | 1 |",
        f"same curve: {same}; the tree itself took {tree_wall:.1f} s",
    ]


def time_algorithm1(args: argparse.Namespace) -> list[str]:
    n = args.n or 50_000
    d = args.d or 256
    rows, y = make_clusters(n, d, 100, 1.4, args.seed)
    rng = np.random.default_rng(args.seed)
    labels = np.where((y < 80) & (rng.random(n) < 0.5), y, -1)
    points = rows.to(args.device)
    five = InferenceSettings(max_shifts=5)
    # Exactly five shifts: six trees, six cuts and accuracies.
    with patch.object(inference, "stops", return_value=False):
        whole, wall, cpu = timed(
            lambda: infer(points, labels, 100, five), args.repeats, args.device
        )
    assert len(whole.accuracies) == 6
    found, own_wall, own_cpu = timed(lambda: infer(points, labels, 100), 1, args.device)
    n_shifts = len(found.accuracies) - 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gpu = ""
    if args.device != "cpu":
        gpu = f", of the GPU's {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    return [
        f"Algorithm 1, {n:,} x {d}, {args.device}",
        "| run | wall s | CPU s |",
        "|---|---|---|",
        f"| five shifts, six trees, cuts and accuracies | {wall:.1f} | {cpu:.1f} |",
        f"| stopped by labels: {n_shifts} shifts | {own_wall:.1f} | {own_cpu:.1f} |",
        f"largest resident memory of the process: {memory:.2f} GiB{gpu}",
    ]


PARTS = {"knn": time_knn, "sweep": time_sweep, "algorithm1": time_algorithm1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--n", type=int, help="points; default 10,000, for algorithm1 50,000")
    parser.add_argument(
        "--d", type=int, help="columns; default 768, for the sweep 64, for algorithm1 256"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path, help="file to append the tables to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lines = header(sys.argv)
    for part in args.parts:
        title, *table, note = PARTS[part](args)
        lines += [title, "\n".join(table), note]
    write(lines, args.record)


if __name__ == "__main__":
    main()
