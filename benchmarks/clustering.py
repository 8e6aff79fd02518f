"""Time the steps from embeddings to categories against simpler implementations.

    python benchmarks/clustering.py knn           # faiss-cpu's IndexFlatIP, neighbors compared
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

from records import header, write
from shoal.clustering import inference
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.neighbors import k_nearest


def make_clusters(
    n: int, d: int, n_classes: int, noise: float, seed: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Return unit rows around random centers, and the class of each."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=generator)
    centers = torch.randn(n_classes, d, generator=generator)
    rows = centers[y] + noise * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(rows, dim=1), y.numpy()


def timed(work: Callable[[], Any], repeats: int, device: str = "cpu") -> tuple[Any, float, float]:
    """Return the result, and the smallest wall and CPU seconds of several runs."""
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
    itself = torch.arange(n)
    index = faiss.IndexFlatIP(d)
    index.add(rows.numpy())
    ours, wall, cpu = timed(lambda: k_nearest(rows, rows, 8, exclude=itself), args.repeats)
    _, raw_wall, raw_cpu = timed(
        lambda: k_nearest(rows, rows, 8, exclude=itself, exact=False), args.repeats
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


def time_algorithm1(args: argparse.Namespace) -> list[str]:
    n = args.n or 50_000
    d = args.d or 256
    rows, y = make_clusters(n, d, 100, 1.4, args.seed)
    rng = np.random.default_rng(args.seed)
    labels = np.where((y < 80) & (rng.random(n) < 0.5), y, -1)
    points = rows.to(args.device)
    five = InferenceSettings(max_shifts=5)
    # Exactly five shifts: six trees, six cuts and accuracies.
    with patch.object(inference, "has_peaked", return_value=False):
        whole, wall, cpu = timed(
            lambda: infer(points, labels, 100, five), args.repeats, args.device
        )
    assert len(whole.accuracies) == 6
    stopped, stopped_wall, stopped_cpu = timed(lambda: infer(points, labels, 100), 1, args.device)
    n_shifts = len(stopped.accuracies) - 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gpu = ""
    if args.device != "cpu":
        gpu = f"; of the GPU: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    return [
        f"Algorithm 1, {n:,} x {d}, {args.device}",
        "| run | wall s | CPU s |",
        "|---|---|---|",
        f"| five shifts, six trees, cuts and accuracies | {wall:.1f} | {cpu:.1f} |",
        f"| stopped by labels: {n_shifts} shifts | {stopped_wall:.1f} | {stopped_cpu:.1f} |",
        f"peak memory of the process: {memory:.2f} GiB{gpu}",
    ]


PARTS = {"knn": time_knn, "algorithm1": time_algorithm1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--n", type=int, help="points; default 10,000, for algorithm1 50,000")
    parser.add_argument("--d", type=int, help="columns; default 768, for algorithm1 256")
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
