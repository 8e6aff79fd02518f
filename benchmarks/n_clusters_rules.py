"""Compare estimates of the number of clusters with the truth, over samples of known classes.

    python benchmarks/n_clusters_rules.py cub.npz --digits --known-share 0.5 0.7 --per-class 0 5 2
    python benchmarks/n_clusters_rules.py flowers102.npz --known-are largest --seeds 5

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out
FILE.npz` writes it. Each seed samples a share of the classes as known (at least two), or takes the
largest or smallest, and labels `--labeled` of all their images or `--per-class` images of each.
Trees are grown after `--shifts` mean-shift steps. The row "default" is what `estimate_n_clusters`
returns, "paper" the rule of the paper. ± is the standard error over seeds; "interval holds the
truth" is the share of samples in which the 80 % interval does.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

from records import write_table
from shoal.clustering.mean_shift import mean_shift
from shoal.clustering.n_clusters import DEFAULT_RULE, estimate_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage

COMPARED = {"paper": "paper", "default": DEFAULT_RULE}
HELD = "interval holds the truth"

Case = tuple[str, float, int]
"""A collection, the share of its classes that is known, and labels per class (0: a share)."""


def grow(rows: np.ndarray, n_shifts: int) -> Tree:
    """The tree of the embeddings after some shifts (k = 8, α = 0.5)."""
    points = unit_points(rows)
    own = torch.arange(len(points))
    for _ in range(n_shifts):
        neighbors = k_nearest(points, points, 8, exclude=own).indices
        points = mean_shift(points, points, neighbors, alpha=0.5)
    return Tree(ward_linkage(points))


def draw_labels(
    y: np.ndarray, known: np.ndarray, labeled: float, rng: np.random.Generator
) -> np.ndarray:
    """Label a share of all images of known classes; -1 elsewhere."""
    candidates = np.flatnonzero(np.isin(y, known))
    chosen = rng.choice(candidates, int(labeled * len(candidates)), replace=False)
    labels = np.full(len(y), -1)
    labels[chosen] = y[chosen]
    return labels


def draw_each(
    y: np.ndarray, known: np.ndarray, n_labels: int, rng: np.random.Generator
) -> np.ndarray:
    """Label the same number of images of each known class; -1 elsewhere."""
    labels = np.full(len(y), -1)
    for c in known:
        labels[rng.choice(np.flatnonzero(y == c), n_labels, replace=False)] = c
    return labels


def order_classes(y: np.ndarray, known_are: str, rng: np.random.Generator) -> np.ndarray:
    """The classes, those first that are to be known."""
    classes, sizes = np.unique(y, return_counts=True)
    if known_are == "drawn":
        return rng.permutation(classes)
    by_size = np.argsort(sizes, kind="stable")
    return by_size[::-1] if known_are == "largest" else by_size


def measure(y: np.ndarray, tree: Tree, case: Case, args: argparse.Namespace) -> dict[str, list]:
    """Errors of each rule relative to the true K, and whether the interval holds it, by seed."""
    _, known_share, n_labels = case
    n_classes = len(np.unique(y))
    found: dict[str, list] = {name: [] for name in (*COMPARED, HELD)}
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        order = order_classes(y, args.known_are, rng)
        known = order[: max(round(known_share * n_classes), 2)]
        if n_labels:
            labels = draw_each(y, known, n_labels, rng)
        else:
            labels = draw_labels(y, known, args.labeled, rng)
        for name, rule in COMPARED.items():
            estimate = estimate_n_clusters(tree, labels, rule=rule)
            found[name].append(abs(estimate.n_clusters / n_classes - 1))
        low, high = estimate.interval
        found[HELD].append(low <= n_classes <= high)
    return found


def summarize(found: dict[Case, dict[str, list]]) -> list[str]:
    """Return a table by collection, share and rule, a column per number of labels."""
    counts = sorted({n_labels for _, _, n_labels in found})
    names = list(dict.fromkeys(name for name, _, _ in found))
    shares = sorted({share for _, share, _ in found})
    columns = " | ".join(f"{n} per class" if n else "a share labeled" for n in counts)
    lines = [f"| data | known | mean error of | {columns} |", "|---" * (3 + len(counts)) + "|"]
    groups = [([name], [share]) for name, share in product(names, shares)]
    if len(groups) > 1:
        groups.append((names, shares))
    for group_names, group_shares in groups:
        title = ", ".join(group_names)
        known = ", ".join(f"{share:g}" for share in group_shares)
        for row in (*COMPARED, HELD):
            cells = []
            for n_labels in counts:
                cases = product(group_names, group_shares, [n_labels])
                values = np.array([found[case][row] for case in cases])  # (cases, seeds)
                cells.append(in_percent(values.mean(axis=0), is_share=row == HELD))
            lines.append(f"| {title} | {known} | {row} | {' | '.join(cells)} |")
    return lines


def in_percent(of_seed: np.ndarray, *, is_share: bool) -> str:
    """The mean over seeds (S,), with its standard error unless it is a share."""
    mean = of_seed.mean()
    if is_share or len(of_seed) < 2:
        return f"{mean:.0%}"
    standard_error = of_seed.std(ddof=1) / np.sqrt(len(of_seed))
    return f"{100 * mean:.1f} ± {100 * standard_error:.1f} %"


def datasets(args: argparse.Namespace) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, embeddings and classes of what the arguments ask for."""
    for file in args.files:
        with np.load(file) as stored:
            yield file.stem, stored["X"], np.unique(stored["y"], return_inverse=True)[1]
    if args.digits:
        from sklearn.datasets import load_digits

        digits = load_digits()
        yield "digits", digits.data, digits.target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--digits", action="store_true", help="scikit-learn's 1,797, raw pixels")
    parser.add_argument("--known-share", type=float, nargs="+", default=[0.5, 0.7])
    parser.add_argument("--known-are", choices=["drawn", "largest", "smallest"], default="drawn")
    parser.add_argument("--labeled", type=float, default=0.5, help="share of their images")
    parser.add_argument(
        "--per-class", type=int, nargs="+", default=[0], help="labels of each; 0: --labeled"
    )
    parser.add_argument("--shifts", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--record", type=Path, help="file to append the table to")
    args = parser.parse_args()
    torch.set_num_threads(2)
    found = {}
    for name, rows, y in datasets(args):
        tree = grow(rows, args.shifts)
        for share, n_labels in product(args.known_share, args.per_class):
            case = (name, share, n_labels)
            found[case] = measure(y, tree, case, args)
    write_table(summarize(found), args.record)


if __name__ == "__main__":
    main()
