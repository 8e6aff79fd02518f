"""Ready embeddings in, a finished run folder out: `shoal cluster`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from shoal.arrays import Ints, as_labels
from shoal.clustering.inference import InferenceSettings, check_task, infer
from shoal.clustering.sums import unit_points
from shoal.device import choose_device
from shoal.discovery.named_categories import name_categories, write_categories
from shoal.discovery.reporter import CLUSTERING, NOTE, Reporter
from shoal.methods.clusters import as_discovery, linkage_in_words
from shoal.runs import Run, check_not_held, locked
from shoal.words import doubt_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSettings:
    """How embeddings become categories."""

    n_clusters: int | None = None
    """The number of clusters; none: estimated from the labels."""
    inference: InferenceSettings = field(
        default_factory=lambda: InferenceSettings(
            must_link=True, try_average=True, split_mixtures=True
        )
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class LabeledEmbeddings:
    """Embeddings with names and the labels a user has."""

    names: Sequence[str]
    x: ArrayLike
    """(N, D)."""
    labels: Ints
    """(N,) positions in `classes`, -1 for unlabeled."""
    classes: Sequence[str]


def cluster_embeddings(
    given: LabeledEmbeddings,
    out: Path | str,
    settings: ClusterSettings | None = None,
    *,
    device: str | torch.device | None = None,
    force: bool = False,
    command: str = "",
    reporter: Reporter | None = None,
) -> Run:
    """Cluster embeddings by Algorithm 1 and write what was found to the run folder `out`."""
    settings = settings or ClusterSettings()
    reporter = reporter or Reporter()
    torch_device = choose_device(device)
    check_not_held(out)
    points = unit_points(given.x, device=torch_device)
    labels = as_labels(given.labels, len(points), name="labels")
    check_task(labels, settings.n_clusters, settings.inference)
    with locked(out):
        run = Run.create(out, force=force)
        counts = {"n_images": len(points), "n_labeled": int((labels >= 0).sum())}
        run.start(settings, seed=0, device=str(torch_device), command=command, **counts)
        _cluster(run, points, labels, given, settings, reporter)
    return run


def _cluster(
    run: Run,
    points: torch.Tensor,
    labels: Ints,
    given: LabeledEmbeddings,
    settings: ClusterSettings,
    reporter: Reporter,
) -> None:
    with reporter.progress(CLUSTERING):
        inference = infer(points, labels, settings.n_clusters, settings.inference, is_unit=True)
    if inference.estimate is not None and inference.estimate.rule != settings.inference.rule:
        reporter.say(
            "note: labels are too few for the estimate that was asked for, so the number of categories is a rougher "
            "one; give --n-clusters if you know it, or label more"
        )
    elif inference.estimate is not None and (doubt := doubt_labels(*_counted(labels))):
        reporter.say(f"{NOTE}{doubt}")
    discovery = as_discovery(inference, points)
    shift = settings.inference.shift
    if said := linkage_in_words(discovery):
        reporter.say(said)
    named = name_categories(
        discovery, given.names, labels, given.classes, n_neighbors=shift.n_neighbors
    )
    write_categories(run, named, discovery, n_neighbors=shift.n_neighbors, alpha=shift.alpha)
    run.finish()


def _counted(labels: Ints) -> tuple[int, int]:
    """Labeled images and known categories."""
    given = labels[labels >= 0]
    return len(given), len(np.unique(given))
