"""From clusters to a run folder: number them, describe every image, write the parts that showing needs.

N images, D columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shoal.arrays import Floats, Ints
from shoal.clustering.categories import describe_members, novel_name, number_clusters
from shoal.clustering.n_clusters import NClustersEstimate
from shoal.discovery.outputs import Found, assignment_rows, category_rows
from shoal.runs import Run


@dataclass(frozen=True, eq=False, kw_only=True)
class Clusters:
    """What a method hands over; rows are images."""

    labels: Ints
    """(N,) the cluster of every image."""
    embeddings: Floats
    """(N, D) from the encoder."""
    shifted: Floats | None = None
    """(N, D) after the mean shifts."""
    linkage: Floats | None = None
    """(N - 1, 4) the tree that was cut."""
    accuracies: tuple[float, ...] = ()
    """Labeled accuracy after 0, 1, 2 … shifts."""
    n_shifts: int = 0
    estimate: NClustersEstimate | None = None
    """Where the number of clusters was not given."""


def name_categories(
    clusters: Clusters, names: Sequence[str], given: Ints, classes: Sequence[str], *, n_neighbors: int
) -> Found:
    """Turn clusters into categories: known ones keep their class's place, novel ones follow by falling size."""
    categories, n_novel = number_clusters(clusters.labels, given, len(classes), clusters.embeddings[:, :8])
    points = torch.from_numpy(np.ascontiguousarray(clusters.embeddings))
    everyone = [*classes, *(novel_name(i + 1) for i in range(n_novel))]
    return Found(
        names=names,
        given=given,
        categories=categories,
        classes=everyone,
        n_known=len(classes),
        members=describe_members(points, categories, len(everyone), len(classes), n_neighbors),
    )


def write_found(
    run: Run, found: Found, clusters: Clusters, *, n_neighbors: int, alpha: float, repeats: Sequence[int] = ()
) -> None:
    """Write tables, arrays, the estimate of K (with what its repetitions gave) and the shifts."""
    run.write_assignments(assignment_rows(found))
    run.write_categories(category_rows(found))
    run.write_array("embeddings", clusters.embeddings)
    for name, array in (("shifted", clusters.shifted), ("tree", clusters.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_json("estimate", _estimate(clusters, repeats))
    if clusters.accuracies:
        accuracies = [None if value != value else value for value in clusters.accuracies]
        shifts = {"accuracies": accuracies, "chosen": clusters.n_shifts, "n_neighbors": n_neighbors, "alpha": alpha}
        run.write_json("shifts", shifts)


def _estimate(clusters: Clusters, repeats: Sequence[int]) -> dict[str, object]:
    found, curve = clusters.estimate, None
    if found is not None:
        curve = {"n_clusters": found.curve.n_clusters.tolist(), "accuracy": found.curve.accuracy.tolist()}
    return {
        "n_clusters": int(clusters.labels.max()) + 1,
        "rule": found.rule if found is not None else "given",
        "is_given": found is None,
        "curve": curve,
        "stability": {"n_clusters": list(repeats)} if repeats else None,
    }
