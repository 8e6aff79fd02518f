"""Ready embeddings in, a finished run folder out: `shoal cluster`."""

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


def cluster_embeddings(
    given: Embeddings,
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
    labels = given.labels
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
                    "labels are too few for the estimate that was asked for, so the number of "
                    "categories is a rougher one; give --n-clusters if you know it, or label more"
                )
            if doubt:
                reporter.say(f"{NOTE}{doubt}")
        discovery = as_discovery(inference, points)
        if said := linkage_in_words(discovery):
            reporter.say(said)
        named = name_categories(
            discovery, given.names, labels, given.classes, n_neighbors=shift.n_neighbors
        )
        write_categories(run, named, discovery, n_neighbors=shift.n_neighbors, alpha=shift.alpha)
        run.finish()
    return run
