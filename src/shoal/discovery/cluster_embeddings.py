"""Cluster precomputed embeddings into a run folder: `shoal cluster`."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.arrays import Ints
from shoal.clustering.inference import InferenceSettings, check_task, infer
from shoal.clustering.sums import unit_points
from shoal.data.readers.embeddings import Embeddings
from shoal.device import AnyDevice, choose_device
from shoal.discovery.named_categories import name_categories, write_result
from shoal.discovery.reporter import CLUSTERING, LOGGED, Reporter
from shoal.methods.method import Discovery, as_discovery
from shoal.runs import Run, locked
from shoal.words import AVERAGE_LINKAGE, doubt_labels


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The settings of `shoal cluster`."""

    n_clusters: int | None = None
    """The number of clusters; None: estimated from the labels."""
    inference: InferenceSettings = field(
        default_factory=lambda: InferenceSettings(
            must_link=True, try_average=True, split_mixtures=True
        )
    )


DEFAULTS = ClusterSettings()


def report_doubts(discovery: Discovery, labels: Ints, reporter: Reporter) -> None:
    """Report a note on average linkage, and one on an estimate of K from few labels (N,)."""
    if discovery.linkage_method == "average":
        reporter.report(AVERAGE_LINKAGE)
    known = labels[labels >= 0]
    doubt = doubt_labels(len(known), len(np.unique(known)))
    if discovery.estimate is not None and doubt:
        reporter.report(f"note: {doubt}")


def cluster_embeddings(
    embeddings: Embeddings,
    out: Path | str,
    settings: ClusterSettings = DEFAULTS,
    *,
    device: AnyDevice = None,
    force: bool = False,
    command: str = "",
    reporter: Reporter = LOGGED,
) -> Run:
    """Cluster embeddings by Algorithm 1, write the run folder `out`, and return the run."""
    torch_device = choose_device(device)
    labels = embeddings.labels
    check_task(labels, settings.n_clusters, settings.inference)
    points = unit_points(embeddings.x, device=torch_device)
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
        discovery = as_discovery(inference, points)
        report_doubts(discovery, labels, reporter)
        named = name_categories(discovery, embeddings, shift.n_neighbors)
        write_result(run, named, shift)
        run.finish()
    return run
