"""Ward's or average linkage: how many unlabeled images are right with each, and which one the labels choose.

    python benchmarks/linkage.py caltech101.npz cub.npz cifar100.npz flowers102.npz --digits --seeds 5 --tails 1 10 30

A file holds X (N, D) and y (N,), the true classes, as `shoal embed FOLDER --labels TABLE --out FILE.npz` writes it.
Each seed draws half of the classes as known and labels half of their images, K given. `--tails 10` draws a long tail
first: class sizes fall evenly on a log scale until the smallest is a tenth of the largest; 1 leaves them as they are.
The second table leaves a collection out: by how many standard errors average linkage has to be better is chosen by All
on the other collections.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from clustering import header, write
from shoal.clustering.average import LINKAGE_METHODS, judge_linkages
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy, is_worse
from shoal.clustering.sums import unit_points

SETTINGS = InferenceSettings(must_link=True)
MIN_IMAGES = 4
"""Fewest images of a class."""
ERRORS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Standard errors by which average linkage has to put more labeled images right, in the second table."""


def draw_tail(y: np.ndarray, times: float, rng: np.random.Generator) -> np.ndarray:
    """The images that are kept, ascending: of each class a share, from all of them to 1 / `times`, drawn."""
    if times == 1:
        return np.arange(len(y))
    classes = rng.permutation(np.unique(y))
    shares = times ** -np.linspace(0, 1, len(classes))
    kept = []
    for c, share in zip(classes, shares, strict=True):
        own = rng.permutation(np.flatnonzero(y == c))
        kept.append(own[: max(MIN_IMAGES, round(share * len(own)))])
    return np.sort(np.concatenate(kept))


def draw_labels(y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Half of the classes, and labels (N,) of half of their images, -1 elsewhere."""
    classes = np.unique(y)
    known = rng.choice(classes, len(classes) // 2, replace=False)
    able = np.flatnonzero(np.isin(y, known))
    chosen = rng.choice(able, len(able) // 2, replace=False)
    labels = np.full(len(y), -1)
    labels[chosen] = y[chosen]
    return known, labels


def measure(
    rows: np.ndarray, y: np.ndarray, times: float, seed: int
) -> tuple[dict[str, float], dict[float, str]]:
    """All by each linkage, and which one is chosen when it has to be better by so many standard errors."""
    rng = np.random.default_rng(seed)
    kept = draw_tail(y, times, rng)
    rows = rows[kept]
    y = y[kept]
    known, labels = draw_labels(y, rng)
    rest = labels < 0
    n_clusters = len(np.unique(y))
    right = {}
    for method in LINKAGE_METHODS:
        found = infer(rows, labels, n_clusters, SETTINGS, linkage_method=method).labels
        right[method] = 100 * gcd_accuracy(y[rest], found[rest], np.isin(y, known)[rest]).all
    judged = judge_linkages(unit_points(rows), labels, SETTINGS.shift, SETTINGS.estimate_shifts)
    chosen = {n: "average" if judged and is_worse(*judged, n_errors=n) else "ward" for n in ERRORS}
    return right, chosen


def leave_out(found: dict[str, list[tuple[dict[str, float], dict[float, str]]]]) -> list[str]:
    """For each collection how many standard errors are best on the others, and what that gives on it."""
    means = {
        name: {n: float(np.mean([right[chosen[n]] for right, chosen in draws])) for n in ERRORS}
        for name, draws in found.items()
    }
    lines = [
        "| left out | chosen on the others | Ward | with that | with 1 | best by its own truth |",
        "|---|---|---|---|---|---|",
    ]
    for name, draws in found.items():
        others = {n: np.mean([means[other][n] for other in means if other != name]) for n in ERRORS}
        best = max(others, key=lambda n: (round(others[n], 3), n))  # the most cautious of equals
        ward = np.mean([right["ward"] for right, _ in draws])
        own = " | ".join(
            f"{value:.1f}"
            for value in (ward, means[name][best], means[name][1.0], max(means[name].values()))
        )
        lines.append(f"| {name} | {best:g} | {own} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--digits", action="store_true", help="scikit-learn's 1,797 digits, raw pixels"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tails", type=float, nargs="+", default=[1.0])
    parser.add_argument("--record", type=Path, help="file to append the table to")
    args = parser.parse_args()
    data = [(file.stem, *(np.load(file)[name] for name in "Xy")) for file in args.files]
    if args.digits:
        from sklearn.datasets import load_digits

        data.append(("digits", *load_digits(return_X_y=True)))
    lines = [
        "| collection | largest / smallest | Ward | average | chosen | average chosen | better one chosen |",
        "|---|---|---|---|---|---|---|",
    ]
    everything: dict[str, list[tuple[dict[str, float], dict[float, str]]]] = {}
    for name, rows, y in data:
        for times in args.tails:
            found = [measure(rows, y, times, seed) for seed in range(args.seeds)]
            everything.setdefault(name, []).extend(found)
            ward, average, chosen = (
                [right[method or taken[1.0]] for right, taken in found]
                for method in (*LINKAGE_METHODS, None)
            )
            n_average = sum(taken[1.0] == "average" for _, taken in found)
            n_better = sum(right[taken[1.0]] == max(right.values()) for right, taken in found)
            means = " | ".join(f"{np.mean(values):.1f}" for values in (ward, average, chosen))
            tail = "as it is" if times == 1 else f"{times:g}"
            lines.append(
                f"| {name} | {tail} | {means} | {n_average} of {args.seeds} | {n_better} of {args.seeds} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    tables = [lines, leave_out(everything)] if len(everything) > 1 else [lines]
    write([*header(sys.argv), *("\n".join(table) for table in tables)], args.record)


if __name__ == "__main__":
    main()
