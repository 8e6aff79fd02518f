"""Compare the rules that estimate the number of clusters with the truth, over draws of known classes and labels.

    python benchmarks/n_clusters_rules.py --digits --n-known 5 --seeds 40
    python benchmarks/n_clusters_rules.py embeddings/cub.npz --n-known 100 --seeds 10 --record benchmarks/results/k.md
    python benchmarks/n_clusters_rules.py embeddings/cifar100.npz --known 0-79 --share 0.2 --shifts 0 1
    python benchmarks/n_clusters_rules.py --synthetic --seeds 8
    python benchmarks/n_clusters_rules.py --digits --n-known 5 --shifts 1 --per-class 1 2 3 5 10 --seeds 5
    python benchmarks/n_clusters_rules.py cub.npz --digits --half odd --vary --known-share 0.5 0.8 --per-class 0 1 2 3 5
    python benchmarks/n_clusters_rules.py cub.npz --digits --known-share 0.5 0.7 --shifts 1 --per-class 0 2 5 --seeds 10

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Each seed draws `--n-known` classes (or takes `--known`) and labels `--labeled` of their images in one draw, as the
benchmarks of the field do, or `--per-class` images of each; `--share` keeps that share of all images first, as a
validation set would. `--vary` draws between half and all of the classes and at most 40 images of each instead, and
`--half` keeps every other class (of the digits every other image), so that rules can be chosen on one half and compared
on the other. `--known-are largest` takes the largest classes instead of drawn ones. `--shifts t` estimates on the tree
after t mean-shift steps. The row "default" is what `estimate_n_clusters` answers; the others are the rules as they are,
whether labels suffice for them or not. ± behind an error is its standard error over the seeds; the last tables hold
means over the numbers of known classes, and over all data, and in how many draws the 80 % interval holds the truth;
with `--known-share` both also for each share.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

from clustering import header, make_clusters, write
from shoal.clustering.curve import Curve, accuracy_curve
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import mean_shift
from shoal.clustering.n_clusters import (
    DEFAULT_RULE,
    choose,
    gap,
    interval,
    plateau,
    precision,
    read_mark,
)
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage

HELD = "interval holds the truth"

MOST_IMAGES = 40
"""Images of a class with --vary."""

Data = tuple[
    str, np.ndarray, np.ndarray, list[float]
]  # name, X, y, numbers of known classes to try


def grow(rows: np.ndarray, n_shifts: int) -> Tree:
    """The tree of the embeddings after some shifts (k = 8, α = 0.5)."""
    points = unit_points(rows)
    own = torch.arange(len(points))
    for _ in range(n_shifts):
        points = mean_shift(
            points, points, k_nearest(points, points, 8, exclude=own).indices, alpha=0.5
        )
    return Tree(ward_linkage(points))


def draw_labels(
    y: np.ndarray, known: np.ndarray, labeled: float, rng: np.random.Generator
) -> np.ndarray:
    """Label a share of the images of known classes in one draw; -1 elsewhere."""
    candidates = np.flatnonzero(np.isin(y, known))
    chosen = rng.choice(candidates, int(labeled * len(candidates)), replace=False)
    labels = np.full(len(y), -1)
    labels[chosen] = y[chosen]
    return labels


def draw_each(
    y: np.ndarray, known: np.ndarray, n_labels: int, rng: np.random.Generator
) -> np.ndarray:
    """Label as many images of each known class; -1 elsewhere."""
    labels = np.full(len(y), -1)
    for c in known:
        chosen = rng.choice(np.flatnonzero(y == c), n_labels, replace=False)
        labels[chosen] = c
    return labels


def draw_known(
    classes: np.ndarray, n_known: float, rng: np.random.Generator, first: np.ndarray | None = None
) -> np.ndarray:
    """So many of the classes, or below 1 that share of them and at least two; drawn, or those that come `first`."""
    order = rng.permutation(classes) if first is None else first
    return order[: max(round(n_known * len(classes)), 2) if n_known < 1 else int(n_known)]


def by_size(y: np.ndarray, known_are: str) -> np.ndarray | None:
    """The classes, the largest or the smallest first; None where they are to be drawn."""
    order = np.argsort(np.unique(y, return_counts=True)[1], kind="stable")
    return {"drawn": None, "largest": order[::-1], "smallest": order}[known_are]


def draw(
    y: np.ndarray, known: np.ndarray, n_labels: int, labeled: float, rng: np.random.Generator
) -> np.ndarray:
    """Labels (N,) of so many images of each known class, or where that is 0 of a share of all their images."""
    return draw_each(y, known, n_labels, rng) if n_labels else draw_labels(y, known, labeled, rng)


def draw_images(y: np.ndarray, args: argparse.Namespace, rng: np.random.Generator) -> np.ndarray:
    """The images that a seed looks at, ascending."""
    if not args.vary:
        return (
            np.sort(rng.choice(len(y), int(args.share * len(y)), replace=False))
            if args.share < 1
            else np.arange(len(y))
        )
    n_classes = int(y.max()) + 1
    classes = rng.permutation(n_classes)[: rng.integers(n_classes // 2, n_classes + 1)]
    return np.sort(
        np.concatenate([rng.permutation(np.flatnonzero(y == c))[:MOST_IMAGES] for c in classes])
    )


COMPARED: dict[str, Callable[[Curve], float]] = {
    "default": lambda curve: choose(curve, DEFAULT_RULE)[0],
    "paper": lambda curve: choose(curve, "paper")[0],
    "mark": lambda curve: read_mark(curve).n_clusters,
    "plateau": plateau,
    "precision": precision,
    "gap": gap,
}
"""The two rules, what the default takes for its prior, and the marks that this is made of."""


def estimates_of(curve: Curve) -> dict[str, int]:
    """K by every rule that has something to say."""
    silent = {"precision"} if np.isnan(curve.fit).any() else set()
    return {rule: round(choice(curve)) for rule, choice in COMPARED.items() if rule not in silent}


def compare(
    data: Data,
    n_known: float,
    n_shifts: int,
    n_labels: int,
    trees: dict[object, Tree],
    args: argparse.Namespace,
) -> tuple[list[str], dict[str, np.ndarray]]:
    """A table row per rule: the estimates, their error against the truth, and the true accuracy of the cut.

    Returns the table and the errors of each seed. Trees are kept: they depend on the seed alone, or not even on that.
    """
    name, rows, y, _ = data
    found: dict[str, list[int]] = {}
    accuracy: dict[str, list[float]] = {"truth": []}
    truths = []
    best = []
    held = []
    widths = []
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        kept = draw_images(y, args, rng)
        key = (name, n_shifts, len(kept) < len(y) and seed)
        if key not in trees:
            trees[key] = grow(rows[kept], n_shifts)
        tree = trees[key]
        truth = y[kept]
        classes = np.unique(truth)
        known = (
            np.array(args.known)
            if args.known
            else draw_known(classes, n_known, rng, by_size(truth, args.known_are))
        )
        labels = draw(truth, known, n_labels, args.labeled, rng)
        curve = accuracy_curve(tree, labels)
        truths.append(len(classes))
        best.append(curve.accuracy.max())
        low, high = interval(curve)
        held.append(low <= len(classes) <= high)
        widths.append(high / low)
        hidden = labels < 0
        for rule, chosen in estimates_of(curve).items():
            found.setdefault(rule, []).append(chosen)
            accuracy.setdefault(rule, []).append(
                matched_accuracy(truth[hidden], tree.cut(chosen)[hidden])
            )
        accuracy["truth"].append(matched_accuracy(truth[hidden], tree.cut(len(classes))[hidden]))
    title = f"{name}, {n_known:g} known of {np.mean(truths):.0f} classes, {n_shifts} shifts, {args.seeds} seeds"
    errors = {HELD: np.array(held, dtype=float)}
    if n_labels:
        title += f", {n_labels} labeled per class"
    lines = [
        f"{title}; best labeled accuracy {np.mean(best):.2f}; All at the true K {np.mean(accuracy['truth']):.3f}"
    ]
    lines += [
        "| rule | K, mean ± sd | mean error | bias | All at this K |",
        "|---|---|---|---|---|",
    ]
    for rule, estimates in found.items():
        scores = accuracy[rule]
        off = np.array(estimates) / np.array(truths) - 1
        errors[rule] = np.abs(off)
        lines.append(
            f"| {rule} | {np.mean(estimates):.1f} ± {np.std(estimates):.1f} "
            f"| {in_percent(*mean_error([errors[rule]]))} | {off.mean():+.1%} | {np.mean(scores):.3f} |"
        )
    ends = f"interval holds the truth in {sum(held)} of {len(held)} draws"
    return [*lines, f"\n{ends}; upper over lower end {np.median(widths):.2f} (median)"], errors


def mean_error(errors: list[np.ndarray]) -> tuple[float, float]:
    """The mean error and its standard error over the seeds, which all cases share: (seeds,) each."""
    of_seed = np.mean(errors, axis=0)  # (seeds,)
    return float(of_seed.mean()), float(of_seed.std(ddof=1) / np.sqrt(len(of_seed))) if len(
        of_seed
    ) > 1 else np.nan


def in_percent(error: float, standard_error: float) -> str:
    return f"{100 * error:.1f} ± {100 * standard_error:.1f} %"


def summarize(errors: list[tuple[str, int, dict[str, np.ndarray]]]) -> list[str]:
    """Mean errors of each data and over all, a column per number of labels."""
    counts = sorted({n for _, n, _ in errors})
    names = list(dict.fromkeys(name for name, _, _ in errors))
    columns = " | ".join(f"{n} per class" if n else "a share" for n in counts)
    lines = []
    for title, chosen in [
        *((name, [name]) for name in names),
        *([("all data", names)] if len(names) > 1 else []),
    ]:
        lines += [
            "",
            f"| {title}: mean error with labels | {columns} |",
            f"|---{'|---' * len(counts)}|",
        ]
        for rule in COMPARED:
            cells = []
            for n in counts:
                # Seeds are drawn alike for all data, but of unlike classes: data are independent, cases within are not.
                cases = [
                    [e.get(rule) for of, m, e in errors if of == name and m == n] for name in chosen
                ]
                if any(error is None for case in cases for error in case):
                    cells.append("–")
                    continue
                means = np.array([mean_error(case) for case in cases])  # (data, 2)
                cells.append(
                    in_percent(means[:, 0].mean(), np.sqrt((means[:, 1] ** 2).sum()) / len(means))
                )
            lines.append(f"| {rule} | {' | '.join(cells)} |")
        held = [
            np.mean([e[HELD].mean() for of, m, e in errors if of in chosen and m == n])
            for n in counts
        ]
        lines.append(f"| {HELD} | {' | '.join(f'{share:.0%}' for share in held)} |")
    return lines


def by_share(errors: list[tuple[str, float, int, dict[str, np.ndarray]]]) -> list[str]:
    """The default's mean error and in how many draws its interval holds the truth: a row per share known and data."""
    counts = sorted({n for _, _, n, _ in errors})
    cases = sorted({(share, name) for name, share, _, _ in errors})
    columns = " | ".join(f"{n} per class" if n else "a share" for n in counts)
    lines = [
        "",
        f"| known, error and coverage with labels | {columns} |",
        f"|---{'|---' * len(counts)}|",
    ]
    for share, name in [
        *cases,
        *((share, "all data") for share in sorted({share for share, _ in cases})),
    ]:
        cells = []
        for n in counts:
            found = [
                e for of, s, m, e in errors if (s, m) == (share, n) and name in (of, "all data")
            ]
            error, held = (np.mean([e[what].mean() for e in found]) for what in ("default", HELD))
            cells.append(f"{error:.0%}, {held:.0%}")
        lines.append(f"| {share:g}, {name} | {' | '.join(cells)} |")
    return lines


def every_other(
    rows: np.ndarray, groups: np.ndarray, y: np.ndarray, half: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the even or odd groups, and their classes numbered anew."""
    kept = np.ones(len(y), dtype=bool) if half is None else groups % 2 == (half == "odd")
    return rows[kept], np.unique(y[kept], return_inverse=True)[1]


def datasets(args: argparse.Namespace) -> Iterator[Data]:
    """What the arguments ask for, one at a time."""
    for file in args.files:
        with np.load(file) as stored:
            y = np.unique(stored["y"], return_inverse=True)[1]
            rows, y = every_other(stored["X"], y, y, args.half)
            yield file.stem, rows, y, args.known_share or args.n_known or [(int(y.max()) + 1) // 2]
    if args.digits:
        from sklearn.datasets import load_digits

        digits = load_digits()
        rows, y = every_other(digits.data, np.arange(len(digits.data)), digits.target, args.half)
        yield "digits", rows, y, args.known_share or args.n_known or [4, 5, 6, 8]
    if args.synthetic:
        for noise in (1.2, 1.6, 2.0):
            drawn, y = make_clusters(3000, 64, 100, noise, seed=0)
            yield (
                f"100 overlapping clouds, noise {noise}",
                drawn.numpy(),
                y,
                args.known_share or args.n_known or [30, 50, 80],
            )


def known_list(text: str) -> list[int]:
    """Parse '0-4,7' into 0, 1, 2, 3, 4, 7."""
    ends = [part.split("-") for part in text.split(",")]
    return [c for part in ends for c in range(int(part[0]), int(part[-1]) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--digits", action="store_true", help="scikit-learn's 1,797 digits, raw pixels"
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="Gaussian classes that overlap more and more"
    )
    parser.add_argument(
        "--n-known", type=int, nargs="+", help="known classes drawn for each seed; default: half"
    )
    parser.add_argument(
        "--known", type=known_list, help="known classes, the same for each seed: 0-4,7"
    )
    parser.add_argument("--known-are", choices=["drawn", "largest", "smallest"], default="drawn")
    parser.add_argument(
        "--labeled", type=float, default=0.5, help="share of the known classes' images with a label"
    )
    parser.add_argument(
        "--per-class", type=int, nargs="+", default=[0], help="labels of each; 0: as --labeled says"
    )
    parser.add_argument(
        "--known-share", type=float, nargs="+", help="share of the classes that is known, below 1"
    )
    parser.add_argument(
        "--half", choices=["even", "odd"], help="every other class, of the digits every other image"
    )
    parser.add_argument(
        "--vary", action="store_true", help="each seed draws classes and at most 40 images of each"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of all images used, drawn for each seed"
    )
    parser.add_argument("--shifts", type=int, nargs="+", default=[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--record", type=Path, help="file to append the tables to")
    args = parser.parse_args()
    torch.set_num_threads(2)
    lines = header(sys.argv)
    errors = []
    for data in datasets(args):
        trees: dict[object, Tree] = {}
        n_known = [len(args.known)] if args.known else data[3]
        for case in product(n_known, args.shifts, args.per_class):
            (title, *table), found = compare(data, *case, trees, args)
            lines += [title, "\n".join(table)]
            errors.append((data[0], case[0], case[2], found))
    lines.append("\n".join(summarize([(name, n, found) for name, _, n, found in errors])))
    if args.known_share:
        lines.append("\n".join(by_share(errors)))
    write(lines, args.record)


if __name__ == "__main__":
    main()
