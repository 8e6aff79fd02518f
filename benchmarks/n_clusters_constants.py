"""What the rule `pairs` errs on a collection that its constants were not chosen on.

    python benchmarks/n_clusters_constants.py cub.npz cifar100.npz flowers102.npz caltech101.npz --digits --seeds 10
    python benchmarks/n_clusters_constants.py cub.npz caltech101.npz --digits --last 3 6 --trust 0 1

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Four constants are varied around the shipped values: `--last`, the last cut; `--trust`, that in class sizes;
`--balance` and `--median`, the scales of these rules. The scale of `gap` is not: that rule has a say only where classes
have one label. For each collection the constants are chosen that have the least mean error on the others, over all
numbers of labels at once; the error and the coverage of the 80 % interval on the one left out are reported. Draws are
those of `n_clusters_rules.py`, on the tree after one shift.

D collections, R numbers of labels (0: a share), M configurations; the shipped one is the first.
"""

import argparse
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from clustering import header, write
from n_clusters_rules import datasets, draw, draw_known, grow
from shoal.clustering import class_pairs, n_clusters
from shoal.clustering.curve import accuracy_curve, known_classes
from shoal.clustering.tree import Tree

SHIPPED = {
    "last": class_pairs.LAST,
    "trust": class_pairs.SIZES_TRUSTED,
    "balance": n_clusters.SCALES["balance"],
    "median": n_clusters.SCALES["median"],
}
OTHERS = {"last": [8.0, 18.0], "trust": [0.25, 0.75], "balance": [0.075, 0.3], "median": [0.1, 0.4]}
"""Values tried beside the shipped one."""

Grid = dict[
    str, list[float]
]  # values of each constant, the shipped one first: of equally good ones it is chosen


def answers(tree: Tree, labels: np.ndarray, grid: Grid) -> np.ndarray:
    """(M, 3) K and the ends of its interval with each configuration, in the order of `product`.

    The sweep over all cuts knows none of the constants, so it is done once; pairs know the first two alone.
    """
    swept = accuracy_curve(tree, labels)
    known = known_classes(labels)
    found = []
    for last, trusted in product(grid["last"], grid["trust"]):
        with (
            patch.object(class_pairs, "LAST", last),
            patch.object(class_pairs, "SIZES_TRUSTED", trusted),
        ):
            curve = replace(swept, pairs=class_pairs.pair_terms(tree, known))
        for balance, median in product(grid["balance"], grid["median"]):
            with patch.dict(n_clusters.SCALES, balance=balance, median=median):
                found.append((n_clusters.choose(curve, "pairs")[0], *n_clusters.interval(curve)))
    return np.array(found)


def measure(
    tree: Tree, y: np.ndarray, n_labels: int, grid: Grid, args: argparse.Namespace
) -> tuple[np.ndarray, np.ndarray]:
    """(M,) the mean error of K, and in how many draws the interval holds the truth."""
    classes = np.unique(y)
    errors = []
    held = []
    for share, seed in product(args.known_share, range(args.seeds)):
        rng = np.random.default_rng(seed)
        labels = draw(y, draw_known(classes, share, rng), n_labels, args.labeled, rng)
        k, low, high = answers(tree, labels, grid).T
        errors.append(np.abs(k / len(classes) - 1))
        held.append((low <= len(classes)) & (len(classes) <= high))
    return np.mean(errors, axis=0), np.mean(held, axis=0)


def chosen_on_others(errors: np.ndarray) -> np.ndarray:
    """(D,) for each collection the configuration of the least mean error on all others, by errors (D, R, M)."""
    of_collection = errors.mean(axis=1)  # (D, M)
    others = (
        of_collection.sum(axis=0) - of_collection
    )  # (D, M) D - 1 times the mean over the others
    return others.round(9).argmin(
        axis=1
    )  # rounded: the first of equals, whatever the order of the sum


def tables(
    names: list[str], counts: list[int], grid: Grid, errors: np.ndarray, held: np.ndarray
) -> list[str]:
    """Error and coverage, (D, R, M) each, on each collection left out, then means over all by each way to choose."""
    columns = " | ".join(f"{n} per class" if n else "a share" for n in counts)
    rule = "|---" * (len(counts) + 1) + "|"
    every = np.arange(len(names))
    ways = {
        "shipped": np.zeros(len(names), dtype=int),
        "chosen on the others": chosen_on_others(errors),
        "best on each by its own truth": errors.mean(axis=1).argmin(axis=1),
    }  # (D,) each
    left_out = ways["chosen on the others"]
    configurations = list(product(*grid.values()))
    single = [f"| left out: {', '.join(grid)} | {columns} |", rule]
    for d, name in enumerate(names):
        constants = ", ".join(f"{value:g}" for value in configurations[left_out[d]])
        single.append(
            f"| {name}: {constants} | {in_cells(errors[d, :, left_out[d]], held[d, :, left_out[d]])} |"
        )
    means = [f"| mean error, interval holds the truth | {columns} |", rule]
    for way, pick in ways.items():
        of_way = (values[every, :, pick].mean(axis=0) for values in (errors, held))  # (R,) each
        means.append(f"| {way} | {in_cells(*of_way)} |")
    return ["\n".join(single), "\n".join(means)]


def in_cells(errors: np.ndarray, held: np.ndarray) -> str:
    return " | ".join(
        f"{100 * error:.1f} %, {share:.0%}" for error, share in zip(errors, held, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--digits", action="store_true", help="scikit-learn's 1,797 digits, raw pixels"
    )
    parser.add_argument(
        "--known-share", type=float, nargs="+", default=[0.5, 0.7], help="of the classes, below 1"
    )
    parser.add_argument(
        "--labeled", type=float, default=0.5, help="share of the known classes' images with a label"
    )
    parser.add_argument(
        "--per-class", type=int, nargs="+", default=[0, 5, 2], help="labels of each; 0: --labeled"
    )
    parser.add_argument("--seeds", type=int, default=10)
    for constant, values in OTHERS.items():
        parser.add_argument(
            f"--{constant}",
            type=float,
            nargs="+",
            default=values,
            help="tried beside the shipped one",
        )
    parser.add_argument("--record", type=Path, help="file to append the tables to")
    parser.set_defaults(synthetic=False, half=None, n_known=None)  # that `datasets` asks for
    args = parser.parse_args()
    torch.set_num_threads(1)
    grid = {constant: [shipped, *vars(args)[constant]] for constant, shipped in SHIPPED.items()}
    names = []
    found = []
    for name, rows, y, _ in datasets(args):
        tree = grow(rows, 1)
        names.append(name)
        found.append([measure(tree, y, n_labels, grid, args) for n_labels in args.per_class])
        print(f"{name} done", file=sys.stderr, flush=True)
    if len(names) < 2:
        parser.error("found one collection or none, expected two or more: one is left out")
    errors, held = np.moveaxis(np.array(found), 2, 0)  # (D, R, M) each
    write([*header(sys.argv), *tables(names, args.per_class, grid, errors, held)], args.record)


if __name__ == "__main__":
    main()
