"""Cluster precomputed embeddings into a run folder: `shoal cluster`."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from shoal.clustering.inference import InferenceSettings, check_task, infer
from shoal.clustering.sums import unit_points
from shoal.data.readers.embeddings import Embeddings
from shoal.device import choose_device
from shoal.discovery.named_categories import name_categories, write_categories
from shoal.discovery.reporter import CLUSTERING, NOTE, Reporter
from shoal.methods.clusters import as_discovery
from shoal.runs import Run, check_not_held, locked
from shoal.words import AVERAGE_LINKAGE, doubt_labels


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSettings:
    """The settings of `shoal cluster`."""

    n_clusters: int | None = None
    """The number of clusters; None: estimated from the labels."""
    inference: InferenceSettings = field(
        default_factory=lambda: InferenceSettings(
            must_link=True, try_average=True, split_mixtures=True
        )
    )


def cluster_embeddings(
    embeddings: Embeddings,
    out: Path | str,
    settings: ClusterSettings | None = None,
    *,
    device: str | torch.device | None = None,
    force: bool = False,
    command: str = "",
    reporter: Reporter | None = None,
) -> Run:
    """Cluster embeddings by Algorithm 1, write the run folder `out`, and return the run."""
    settings = settings or ClusterSettings()
    reporter = reporter or Reporter()
    torch_device = choose_device(device)
    check_not_held(out)
    points = unit_points(embeddings.x, device=torch_device)
    labels = embeddings.labels
    check_task(labels, settings.n_clusters, settings.inference)
    known = labels[labels >= 0]
    shift = settings.inference.shift
    with locked(out):
        run = Run.create(out, force=force)
        run.start(
            settings,
            seed=0,
            device=str(torch_device),
            command=command,
            n_images=len(points),
            n_labeled=len(known),
        )
        with reporter.progress(CLUSTERING):
            inference = infer(points, labels, settings.n_clusters, settings.inference, is_unit=True)
        if inference.estimate is not None:
            doubt = doubt_labels(len(known), len(np.unique(known)))
            if inference.estimate.rule != settings.inference.rule:
                doubt = (
                    f"too few labels for the rule {settings.inference.rule}, so the number of "
                    f"categories is estimated by {inference.estimate.rule}, a rougher rule; give "
                    "--n-clusters if you know it, or label more images"
                )
            if doubt:
                reporter.report(f"{NOTE}{doubt}")
        discovery = as_discovery(inference, points)
        if discovery.linkage_method == "average":
            reporter.report(AVERAGE_LINKAGE)
        named = name_categories(discovery, embeddings, shift.n_neighbors)
        write_categories(run, named, discovery, shift)
        run.finish()
    return run
