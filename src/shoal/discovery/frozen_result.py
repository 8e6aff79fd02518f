"""The frozen result: categories found with the frozen encoder, without training."""

from shoal.arrays import Ints
from shoal.data.collection import Collection
from shoal.discovery.cluster_embeddings import report_doubts
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.named_categories import Result, name_categories
from shoal.discovery.reporter import CLUSTERING
from shoal.discovery.results import FROZEN, cluster, write_result_run
from shoal.discovery.reviewed.previous_categories import (
    continue_categories,
    n_clusters_to_continue,
)
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.registry import get_method
from shoal.report.summary import summarize_run
from shoal.runs import Run


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
        if not run.is_finished:
            with job.reporter.progress("writing the report of the frozen result"):
                write_result_run(job.run, result, job.settings)
        report(
            f"Frozen result: {summarize_run(run)} See {run.path / 'report.html'} during training."
        )
    report_doubts(result.discovery, collection.labels, job.reporter)
    return result


def frozen_result(
    frozen: Representation, collection: Collection, settings: DiscoverySettings
) -> Result:
    """Cluster frozen embeddings; after a review, continue from the reviewed categories."""
    n_clusters = n_clusters_to_continue(collection, settings)
    discovery = cluster_frozen(frozen, collection.labels, settings, n_clusters)
    if n_clusters is not None:
        discovery, collection = continue_categories(discovery, collection)
    n_neighbors = settings.shift.n_neighbors
    return name_categories(discovery, collection, n_neighbors, name=FROZEN)


def cluster_frozen(
    frozen: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Cluster frozen embeddings, by Algorithm 1 of CMS if the method trains."""
    if not get_method(settings.method).trains:
        return cluster(frozen, labels, settings, n_clusters)
    return shift_and_cut(
        frozen,
        labels,
        settings.method_settings.inference,
        n_clusters=settings.n_clusters or n_clusters,
        seed=settings.seed,
    )
