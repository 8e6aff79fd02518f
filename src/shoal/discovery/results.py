"""The frozen result of a discovery, and how it and the trained one are written as runs.

The frozen result is a run inside the run while training continues. In the end the better result is
the run itself, and the other one a run inside it.

Shapes: N images, D columns.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.arrays import UNLABELED, Ints
from shoal.data.collection import Collection
from shoal.discovery.cluster_embeddings import report_doubts
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.named_categories import Result, name_categories, write_result
from shoal.discovery.reporter import CLUSTERING
from shoal.discovery.reviewed.previous_categories import (
    continue_categories,
    n_clusters_to_continue,
)
from shoal.files import make_folder, write_text
from shoal.methods.method import Discovery, Representation, shift_and_cut
from shoal.methods.registry import get_method
from shoal.report.suggestions import suggested_splits
from shoal.report.summary import doubt_estimate, summarize_run
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import RESULTS, THUMBNAILS, UNCERTAIN_BELOW, Run, column
from shoal.settings import Plain

FROZEN, TRAINED = RESULTS


def cluster(
    learned: Representation,
    labels: Ints,
    settings: DiscoverySettings,
    n_clusters: int | None = None,
) -> Discovery:
    """Cluster embeddings as the method does, into `settings.n_clusters` or else `n_clusters`."""
    return get_method(settings.method).cluster(
        learned,
        labels,
        settings.method_settings,
        settings.n_clusters or n_clusters,
    )


def write_result_run(
    run: Run, result: Result, settings: DiscoverySettings, folder: Path | None = None, **more: Any
) -> None:
    """Write a result as a finished run with a report, inside `run`, whose thumbnails it shares.

    The default folder has the name of the result; `more` goes to its provenance.json.
    """
    other = Run.create(folder or run.path / result.name, force=True)
    origin = run.provenance
    names = ("device", "command", "root", "folders", "encoder", "fingerprint", "n_unreadable")
    config = replace(settings, train=result.name == TRAINED)
    other.start(config, seed=settings.seed, **{name: origin[name] for name in names})
    write_result(other, result, settings.shift)
    for part in (THUMBNAILS, "skipped.csv"):
        if run.has(part):
            run.share(part, other)
    labels = result.labels
    n_labeled = int((labels != UNLABELED).sum())
    other.note(result=result.name, n_images=len(labels), n_labeled=n_labeled, **more)
    write_report(other)
    other.finish()


def write_results(job: Job, result: Result, other: Result | None) -> None:
    """Write the result to use as the run, and the other one as a run inside it.

    Files that a resumed run wrote before it was interrupted, and no longer writes, are removed.
    """
    run = job.run
    run.drop("accuracy.json", "map.npz", "model.safetensors", "model.json", "report.html")
    run.drop("shifted.npy", "shifts.json", "tree.npy")
    trained = Run(run.path / TRAINED)
    if trained.has("provenance.json") and (other is None or other.name != TRAINED):
        trained.abandon()
    write_result(run, result, job.settings.shift)
    if result.name == FROZEN and job.settings.is_trained:
        Run(run.path / FROZEN).abandon()  # it is the run itself now
    if other is not None:
        if other.name == TRAINED:
            write_result_run(run, other, job.settings)
        job.reporter.report(f"the {other.name} result is in {run.path / other.name}")
    run.log(summarize_run(run))


def write_report(run: Run, file: Path | None = None) -> Path:
    """Write the report of a run, by default to report.html in its folder; return its path.

    To write into the run folder, hold its lock.
    """
    from shoal.report.page import render_report

    target = file if file is not None else run.path / "report.html"
    make_folder(target.parent)
    write_text(target, render_report(run))
    return target


def collect_facts(run: Run) -> Plain:
    """Return what --json prints: the summary, counts, how K was chosen, times and the files."""
    rows = run.assignments
    provenance = run.provenance
    n_labeled = sum(map(bool, column(rows, "label_given")))
    others = [str(run.path / name) for name in RESULTS if Run(run.path / name).is_finished]
    estimate = run.json("estimate")
    del estimate["curve"]
    reviewed = ReviewedRun.of(run)
    changes = run.json("changes") if run.has("changes.json") else {}
    for name in ("changed_labels", "cannot_links"):  # with a row per image
        changes.pop(name, None)
    noted = ("stopped_early", "seconds", "started", "finished", "seed", "device", "encoder")
    return {
        "run": str(run.path),
        "summary": summarize_run(run),
        "n_images": len(rows),
        "n_labeled": n_labeled,
        "n_unlabeled": len(rows) - n_labeled,
        "n_uncertain": sum(value < UNCERTAIN_BELOW for value in column(rows, "confidence")),
        "n_clusters": run.n_clusters,
        "n_known": run.n_known,
        "n_novel": run.n_novel,
        "known_without_images": [row.category for row in run.categories if not row.size],
        "estimate": estimate | {"doubt": doubt_estimate(run)},
        "suggested_splits": [
            {
                "category": category.category,
                "probability": category.mixed_probability,
                "groups": [[reviewed.assignments[row].path for row in group] for group in groups],
            }
            for category, groups in suggested_splits(reviewed)
        ],
        "changes": changes or None,
        "choice": run.json("choice") if run.has("choice.json") else None,
        "other_result": next(iter(others), None),
        "n_unreadable": provenance.get("n_unreadable"),
        **{name: provenance.get(name) for name in noted},
        "files": {file.name: str(file) for file in sorted(run.path.iterdir()) if file.is_file()},
    }


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
    """Cluster frozen embeddings, by Algorithm 1 of CMS if the method trains; after a review,
    continue from the reviewed categories."""
    n_clusters = n_clusters_to_continue(collection, settings)
    labels = collection.labels
    if get_method(settings.method).trains:
        discovery = shift_and_cut(
            frozen,
            labels,
            settings.method_settings.inference,
            n_clusters=settings.n_clusters or n_clusters,
            seed=settings.seed,
        )
    else:
        discovery = cluster(frozen, labels, settings, n_clusters)
    if n_clusters is not None:
        discovery, collection = continue_categories(discovery, collection)
    n_neighbors = settings.shift.n_neighbors
    return name_categories(discovery, collection, n_neighbors, name=FROZEN)
