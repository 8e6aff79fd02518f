"""Measure what labels add to the result without training, on embeddings of the frozen encoder.

    python benchmarks/frozen_labels.py flowers102.npz cifar100.npz --seeds 20

A file holds embeddings `X` (N, D) and classes `y` (N,). A seed samples 20, 30 or 40 classes with at
most 50 images each; half of the classes are known, and half of their images, or five, are labeled.
--whole takes all images, and labels half of those of the known classes together, as `accuracy.py`
does. K is given, or estimated with --estimate. All / Known / Novel over the unlabeled images:

    plain     mean shifts (Algorithm 1)
    links     the same with must-links, and average linkage where labels choose it
    default   also with less variance within the known classes: the frozen result
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from accuracy import sample_labels
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.discovery.discovery_settings import choose_settings

SETTINGS = choose_settings().method_settings.inference
PLAIN = replace(SETTINGS, must_link=False, try_average=False, split_mixtures=False)
NAMES = ("plain", "links", "default")


def sample(classes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of a random task, their classes 0, 1, … (M,), known ones first, and labels
    (M,), -1 for unlabeled."""
    rng = np.random.default_rng([seed, 5])
    n_classes = (20, 30, 40)[seed % 3]
    chosen = rng.choice(classes.max() + 1, n_classes, replace=False)
    rows = [rng.permutation(np.flatnonzero(classes == c))[:50] for c in chosen]
    sampled = np.sort(np.concatenate(rows))
    truth = np.argsort(chosen)[np.searchsorted(np.sort(chosen), classes[sampled])]
    labels = np.full(len(sampled), -1)
    for c in range(n_classes // 2):
        members = rng.permutation(np.flatnonzero(truth == c))
        n_labeled = len(members) // 2 if seed % 2 == 0 else min(5, len(members) - 1)
        labels[members[:n_labeled]] = c
    return sampled, truth, labels


def measure(
    x: np.ndarray, truth: np.ndarray, labels: np.ndarray, n_clusters: int | None
) -> np.ndarray:
    """Return All, Known and Novel in percent of each result (3, 3)."""
    default = infer(x, labels, n_clusters, SETTINGS)
    links = infer(
        x,
        labels,
        n_clusters,
        SETTINGS,
        n_shifts=default.n_shifts,
        linkage_method=default.linkage_method,
        n_frozen=0,  # so that variance is not reduced
    )
    plain = infer(x, labels, n_clusters, PLAIN)
    is_free = labels < 0
    is_known = np.isin(truth, labels)[is_free]
    scores = []
    for found in (plain, links, default):
        accuracy = gcd_accuracy(truth[is_free], found.labels[is_free], is_known)
        scores.append([100 * accuracy.all, 100 * accuracy.known, 100 * accuracy.novel])
    return np.array(scores)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--estimate", action="store_true")
    arguments = parser.parse_args()
    for file in arguments.files:
        with np.load(file) as arrays:
            x = arrays["X"]
            classes = np.unique(arrays["y"], return_inverse=True)[1]
        found = []
        for seed in range(arguments.seeds):
            if arguments.whole:
                rows = np.arange(len(x))
                truth = classes
                _, labels = sample_labels(classes, 0.5, 0.5, seed)
            else:
                rows, truth, labels = sample(classes, seed)
            n_clusters = None if arguments.estimate else int(truth.max()) + 1
            found.append(measure(x[rows], truth, labels, n_clusters))
            cells = " | ".join(" / ".join(f"{v:.1f}" for v in row) for row in found[-1])
            print(f"| {file.stem} | {seed} | {cells} |", flush=True)
        scores = np.array(found)  # (seeds, results, 3)
        for result, name in enumerate(NAMES):
            gains = scores[:, result] - scores[:, 0]
            error = gains.std(axis=0, ddof=1) / len(gains) ** 0.5
            mean = " / ".join(f"{v:.1f}" for v in scores[:, result].mean(axis=0))
            change = " / ".join(
                f"{g:+.1f} ± {e:.1f}" for g, e in zip(gains.mean(axis=0), error, strict=True)
            )
            print(f"| {file.stem} | {name} | {mean} | {change} |", flush=True)


if __name__ == "__main__":
    main()
