"""The frozen result: categories found with the frozen encoder, without training.

Shapes: N images, L of them labeled, D columns.
"""

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.neighbors import k_nearest
from shoal.data.collection import Collection
from shoal.discovery.cluster_embeddings import report_doubts
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.results import (
    FROZEN,
    Result,
    cluster,
    make_result,
    summarize_run,
    write_result_run,
)
from shoal.discovery.reviewed.previous_categories import (
    continue_categories,
    n_clusters_to_continue,
)
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.registry import get_method
from shoal.runs import Run

RECOMMENDED = "dinov2-small"
"""The encoder to recommend if the one in use barely separates the categories."""

MIN_LABELED = 20
"""With fewer labeled images, no encoder is recommended."""

MIN_SKILL = 0.35
"""Lowest chance-corrected accuracy, (accuracy - chance) / (1 - chance), at which no other encoder
is recommended."""


def make_frozen_result(job: Job, images: EmbeddedImages) -> Result:
    """Cluster the frozen embeddings and report notes.

    If training follows, first write the result as a run inside the run folder, so that users can
    look at it in the meantime.
    """
    collection = images.collection
    report = job.reporter.report
    with job.reporter.progress(CLUSTERING):
        result = frozen_result(images.frozen, collection, job.settings)
    if job.settings.is_trained:
        run = Run(job.run.path / FROZEN)
        page = run.path / "report.html"
        if not (run.is_finished and page.is_file()):
            with job.reporter.progress("writing the report of the frozen result"):
                write_result_run(job.run, result, job.settings)
        report(f"Frozen result: {summarize_run(run)} See {page} during training.")
    report_doubts(result.discovery, collection.labels, job.reporter)
    encoder = job.settings.method_settings.encoder
    if advice := advise_encoder(images.frozen.embeddings, collection.labels, encoder):
        report(f"{NOTE}{advice}")
    return result


def frozen_result(
    frozen: Representation, collection: Collection, settings: DiscoverySettings
) -> Result:
    """Cluster frozen embeddings; after a review, continue from the reviewed categories."""
    n_clusters = n_clusters_to_continue(collection, settings)
    discovery = cluster_frozen(frozen, collection.labels, settings, n_clusters)
    if n_clusters is not None:
        discovery, collection = continue_categories(discovery, collection)
    return make_result(FROZEN, discovery, collection, settings)


def cluster_frozen(
    frozen: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Cluster frozen embeddings by Algorithm 1 of CMS, whichever method trains later."""
    if not get_method(settings.method).trains:
        return cluster(frozen, labels, settings, n_clusters)
    return shift_and_cut(
        frozen,
        labels,
        settings.method_settings.inference,
        n_clusters=settings.n_clusters or n_clusters,
        seed=settings.seed,
    )


def advise_encoder(embeddings: Tensor, labels: Ints, encoder: str) -> str:
    """Return a note if `encoder` barely separates the known categories, else ''.

    The criterion is the leave-one-out accuracy of a nearest-neighbor classifier on the labeled
    images. `embeddings` (N, D) are unit rows, `labels` (N,) are -1 for unlabeled.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    known = labels[labeled]  # (L,)
    sizes = np.bincount(known)
    has_others = sizes[known] > 1  # (L,) images that can have a neighbor of their own category
    if encoder.startswith("dinov2") or has_others.sum() < MIN_LABELED or (sizes > 0).sum() < 2:
        return ""
    points = embeddings[torch.from_numpy(labeled).to(embeddings.device)]
    rows = torch.arange(len(points), device=points.device)
    nearest = k_nearest(points, points, 1, exclude=rows).indices[:, 0].cpu().numpy()  # (L,)
    accuracy = float((known[nearest] == known)[has_others].mean())
    chance = float(((sizes[known] - 1) / (len(known) - 1))[has_others].mean())
    if accuracy - chance >= MIN_SKILL * (1 - chance):
        return ""
    return (
        f"{encoder} barely separates the categories: the nearest neighbor of a labeled image has "
        f"the same label for {100 * accuracy:.0f} % of {has_others.sum():,} images "
        f"({100 * chance:.0f} % by chance); try --encoder {RECOMMENDED}"
    )
