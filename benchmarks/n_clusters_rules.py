"""Compare the rules that estimate the number of clusters with the truth, over draws of known classes and labels.

    python benchmarks/n_clusters_rules.py --digits --n-known 5 --seeds 40
    python benchmarks/n_clusters_rules.py embeddings/cub.npz --n-known 100 --seeds 10 --record benchmarks/results/k.md
    python benchmarks/n_clusters_rules.py embeddings/cifar100.npz --known 0-79 --share 0.2 --shifts 0 1
    python benchmarks/n_clusters_rules.py --synthetic --seeds 8
    python benchmarks/n_clusters_rules.py --digits --n-known 5 --shifts 1 --per-class 1 2 3 5 10 --seeds 5

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Each seed draws `--n-known` classes (or takes `--known`) and labels `--labeled` of their images in one draw, as the
benchmarks of the field do, or `--per-class` images of each; `--share` keeps that share of all images first, as a
validation set would. `--shifts t` estimates on the tree after t mean-shift steps. The row "default" is what
`estimate_n_clusters` answers and names the rules that decided; the others are the rules as they are, whether labels
suffice for them or not.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

from clustering import header, make_clusters, write
from shoal.clustering.inference import unit_points
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import mean_shift
from shoal.clustering.n_clusters import RULES, Curve, accuracy_curve, choose
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage

Data = tuple[str, np.ndarray, np.ndarray, list[int]]  # name, X, y, numbers of known classes to try


def grow(rows: np.ndarray, n_shifts: int) -> Tree:
    """The tree of the embeddings after some shifts (k = 8, α = 0.5)."""
    points = unit_points(rows)
    own = torch.arange(len(points))
    for _ in range(n_shifts):
        points = mean_shift(points, points, k_nearest(points, points, 8, exclude=own).indices, alpha=0.5)
    return Tree(ward_linkage(points))


def draw_labels(y: np.ndarray, known: np.ndarray, labeled: float, rng: np.random.Generator) -> np.ndarray:
    """Label a share of the images of known classes in one draw; -1 elsewhere."""
    candidates = np.flatnonzero(np.isin(y, known))
    chosen = rng.choice(candidates, int(labeled * len(candidates)), replace=False)
    labels = np.full(len(y), -1)
    labels[chosen] = y[chosen]
    return labels


def draw_each(y: np.ndarray, known: np.ndarray, n_labels: int, rng: np.random.Generator) -> np.ndarray:
    """Label as many images of each known class; -1 elsewhere."""
    labels = np.full(len(y), -1)
    for c in known:
        chosen = rng.choice(np.flatnonzero(y == c), n_labels, replace=False)
        labels[chosen] = c
    return labels


def estimates_of(curve: Curve, decided: Counter[str]) -> dict[str, int]:
    """K by every rule that has something to say, and by default; counts who decided the latter."""
    silent = {"balance", "precision"} if np.isnan(curve.fit).any() else set()
    by_default, rule = choose(curve, "balance")
    decided[rule] += 1
    return {**{rule: choice(curve) for rule, choice in RULES.items() if rule not in silent}, "default": by_default}


def compare(data: Data, n_known: int, n_shifts: int, n_labels: int | None, args: argparse.Namespace) -> list[str]:
    """A table row per rule: the estimates, their error against the truth, and the true accuracy of the cut."""
    name, rows, y, _ = data
    found: dict[str, list[int]] = {}
    accuracy: dict[str, list[float]] = {"truth": []}
    decided: Counter[str] = Counter()
    truths, best = [], []
    tree, kept = (grow(rows, n_shifts), np.arange(len(y))) if args.share == 1 else (None, None)
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        if args.share < 1:
            kept = rng.choice(len(y), int(args.share * len(y)), replace=False)
            tree = grow(rows[kept], n_shifts)
        truth = y[kept]
        classes = np.unique(truth)
        known = np.array(args.known) if args.known else rng.permutation(classes)[:n_known]
        if n_labels is None:
            labels = draw_labels(truth, known, args.labeled, rng)
        else:
            labels = draw_each(truth, known, n_labels, rng)
        curve = accuracy_curve(tree, labels)
        truths.append(len(classes))
        best.append(curve.accuracy.max())
        hidden = labels < 0
        for rule, chosen in estimates_of(curve, decided).items():
            found.setdefault(rule, []).append(chosen)
            accuracy.setdefault(rule, []).append(matched_accuracy(truth[hidden], tree.cut(chosen)[hidden]))
        accuracy["truth"].append(matched_accuracy(truth[hidden], tree.cut(len(classes))[hidden]))
    title = f"{name}, {n_known} known of {np.mean(truths):.0f} classes, {n_shifts} shifts, {args.seeds} seeds"
    if n_labels is not None:
        title += f", {n_labels} labeled per class"
    lines = [f"{title}; best labeled accuracy {np.mean(best):.2f}; All at the true K {np.mean(accuracy['truth']):.3f}"]
    lines += ["| rule | K, mean ± sd | mean error | bias | All at this K |", "|---|---|---|---|---|"]
    for rule, estimates in found.items():
        scores = accuracy[rule]
        off = np.array(estimates) / np.array(truths) - 1
        if rule == "default":
            rule += f": {', '.join(decided)}"
        lines.append(
            f"| {rule} | {np.mean(estimates):.1f} ± {np.std(estimates):.1f} | {np.abs(off).mean():.1%} "
            f"| {off.mean():+.1%} | {np.mean(scores):.3f} |"
        )
    return lines


def datasets(args: argparse.Namespace) -> Iterator[Data]:
    """What the arguments ask for, one at a time."""
    for file in args.files:
        with np.load(file) as stored:
            classes, y = np.unique(stored["y"], return_inverse=True)
            yield file.stem, stored["X"], y, args.n_known or [len(classes) // 2]
    if args.digits:
        from sklearn.datasets import load_digits

        digits = load_digits()
        yield "digits", digits.data, digits.target, args.n_known or [4, 5, 6, 8]
    if args.synthetic:
        for noise in (1.2, 1.6, 2.0):
            rows, y = make_clusters(3000, 64, 100, noise, seed=0)
            yield f"100 overlapping clouds, noise {noise}", rows.numpy(), y, args.n_known or [30, 50, 80]


def known_list(text: str) -> list[int]:
    """Parse '0-4,7' into 0, 1, 2, 3, 4, 7."""
    ends = [part.split("-") for part in text.split(",")]
    return [c for part in ends for c in range(int(part[0]), int(part[-1]) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--digits", action="store_true", help="scikit-learn's 1,797 digits, raw pixels")
    parser.add_argument("--synthetic", action="store_true", help="Gaussian classes that overlap more and more")
    parser.add_argument("--n-known", type=int, nargs="+", help="known classes drawn for each seed; default: half")
    parser.add_argument("--known", type=known_list, help="known classes, the same for each seed: 0-4,7")
    parser.add_argument("--labeled", type=float, default=0.5, help="share of the known classes' images with a label")
    parser.add_argument("--per-class", type=int, nargs="+", default=[None], help="labels of each, instead of --labeled")
    parser.add_argument("--share", type=float, default=1.0, help="share of all images used, drawn for each seed")
    parser.add_argument("--shifts", type=int, nargs="+", default=[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--record", type=Path, help="file to append the tables to")
    args = parser.parse_args()
    torch.set_num_threads(2)
    lines = header(sys.argv)
    for data in datasets(args):
        n_known = [len(args.known)] if args.known else data[3]
        for case in product(n_known, args.shifts, args.per_class):
            title, *table = compare(data, *case, args)
            lines += [title, "\n".join(table)]
    write(lines, args.record)


if __name__ == "__main__":
    main()
