"""Two embeddings of the same images used at once, and how much of each, chosen by labels that
neither was made with.

Training teaches an encoder the known classes and lets it forget what else it knew. Side by side in
one row, [√w · first, √(1 - w) · second], the squared distance of two images is w times that in the
first embedding plus 1 - w times that in the second. w = 1 is the first alone, w = 0 the second.

N images, D and E columns of the two embeddings, J images that judge, K clusters, T shifts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Bools, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.inference import InferenceSettings, stops
from shoal.clustering.iterates import iterates
from shoal.clustering.matching import is_worse, put_right
from shoal.clustering.mean_shift import ShiftSettings

WEIGHTS = (0.0, 0.35, 0.65, 0.8, 1.0)
"""Weights of the first embedding that are tried."""

USUAL_WEIGHT = 0.65
"""The weight taken where the labels cannot tell it from a better one: the best on average over four
collections, whose hidden labels were in sight (benchmarks/results/2026-11-16_h200_answers.md)."""

MAX_SHIFTS = 6
"""Most shifts tried while a weight is chosen; accuracy has stopped rising by then."""

MAX_ROWS = 4_000
MIN_PER_CLUSTER = 4
"""Images that a choice looks at, and fewest for each cluster: all that judge, and of the others as
many as there is room for."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TriedWeight:
    """What the judging images say of one weight."""

    weight: float
    n_shifts: int
    """After how many shifts most of them are right; of several such numbers the one nearest to the
    usual."""
    right: Bools
    """(J,) which of them are then in the cluster that is matched to their class."""


def blend(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Unit rows (N, D + E) of two sets of unit rows, (N, D) and (N, E); one of them alone where the
    weight says so."""
    if weight in (0, 1):
        return first if weight == 1 else second
    return torch.cat([first * weight**0.5, second * (1 - weight) ** 0.5], dim=1)


def try_weights(
    first: Tensor,
    second: Tensor,
    labels: Ints,
    judged: Ints,
    n_clusters: int,
    settings: InferenceSettings,
    *,
    seed: int,
    weights: Sequence[float] = WEIGHTS,
    linkage_method: LinkageMethod = "ward",
    usual_shifts: int = 0,
    first_cuts: Sequence[Ints] = (),
) -> list[TriedWeight]:
    """Cluster by each weight and see how many of the `judged` (J,) rows come out right by their
    `labels` (N,).

    No other label is looked at: those that training saw say nothing about what it does to images
    without one. A weight whose rows are too much alike to be cut into `n_clusters` is left out. Few
    judging images are often all right without any shift, which says nothing about the others;
    `usual_shifts` are then nearer to what is best. `first_cuts` are clusters (N,) of the first
    embedding alone after 0, 1, 2 … shifts, as far as they are known.
    """
    rows = sample_rows(len(labels), judged, n_clusters, seed)
    kept = torch.from_numpy(rows).to(first.device)
    at = np.searchsorted(rows, judged)  # (J,) the judging images among these rows
    tried = []
    for weight in weights:
        points = blend(first[kept], second[kept], weight)
        known = [cut[rows] for cut in first_cuts] if weight == 1 else []
        cuts = _cuts(points, n_clusters, settings.shift, linkage_method, known)
        rights: list[Bools] = []
        for cut in islice(cuts, MAX_SHIFTS + 1):  # Algorithm 1, by the judging images
            rights.append(put_right(labels[judged], cut[at]))
            if stops([float(right.mean()) for right in rights]):
                break
        if rights:
            counts = [int(right.sum()) for right in rights]
            best = [shifts for shifts, n_right in enumerate(counts) if n_right == max(counts)]
            n_shifts = min(best, key=lambda shifts: abs(shifts - usual_shifts))
            tried.append(TriedWeight(weight=weight, n_shifts=n_shifts, right=rights[n_shifts]))
    return tried


def _cuts(
    points: Tensor,
    n_clusters: int,
    moves: ShiftSettings,
    linkage_method: LinkageMethod,
    known: Sequence[Ints],
) -> Iterator[Ints]:
    """Clusters (M,) after 0, 1, 2 … shifts, while enough rows are distinct; of the first ones where
    they are `known`.

    Trees are made for the others alone.
    """
    yield from known
    for one in islice(iterates(points, moves), len(known), None):
        if not one.has_distinct(n_clusters):
            return
        yield join_small(one.points, one.tree, n_clusters, linkage_method).cut(n_clusters)


def choose_weight(tried: Sequence[TriedWeight]) -> TriedWeight:
    """The weight nearest to the usual one among those that the judging images cannot tell from the
    best.

    None that puts fewer of them right than the first embedding alone does: what costs a training
    must not be worse.

    Images that two weights both put right, or both wrong, say nothing about which is better. If
    neither is, each of the others is as a toss of a coin, and the difference has a standard error
    of √(their number) images. A weight that is worse than the best by no more than that is as good.
    """
    best = max(tried, key=lambda one: int(one.right.sum()))
    alone = max((int(one.right.sum()) for one in tried if one.weight == 1), default=0)
    good = [
        one for one in tried if not is_worse(one.right, best.right) and one.right.sum() >= alone
    ]
    return min(good, key=lambda one: abs(one.weight - USUAL_WEIGHT))


def sample_rows(n_rows: int, judged: Ints, n_clusters: int, seed: int) -> Ints:
    """The rows (M,) that a choice looks at, ascending."""
    if looks_at_all(n_rows, n_clusters):
        return np.arange(n_rows)
    n_wanted = max(MAX_ROWS, MIN_PER_CLUSTER * n_clusters)
    others = np.setdiff1d(np.arange(n_rows), judged)
    n_others = min(len(others), max(n_wanted - len(judged), len(judged)))
    drawn = np.random.default_rng(seed).choice(others, n_others, replace=False)
    return np.sort(np.concatenate([judged, drawn]))


def looks_at_all(n_rows: int, n_clusters: int) -> bool:
    """Whether a choice looks at all of so many rows."""
    return n_rows <= max(MAX_ROWS, MIN_PER_CLUSTER * n_clusters)
