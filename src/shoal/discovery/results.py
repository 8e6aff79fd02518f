"""Results: clusters turned into named categories with ids and confidence, and written as runs.

`shoal cluster` has one result, and writes it as a run. `shoal discover` writes its frozen result as
a run inside the run while training continues. In the end the better result is the run itself, and
the other one a run inside it.

Shapes: N images, D columns, K categories.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from shoal.arrays import UNLABELED, Floats, Ints, nan_to_null
from shoal.clustering.calibration import Calibration, calibrate, fit_seen_probability
from shoal.clustering.categories import (
    Membership,
    Mixtures,
    category_names,
    describe,
    find_mixtures,
    number_clusters,
    other_neighbors,
    same_category_share,
)
from shoal.clustering.inference import InferenceSettings, check_task, infer
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import CategoryTree
from shoal.data.collection import Collection
from shoal.data.readers.embeddings import Embeddings
from shoal.device import AnyDevice, choose_device
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, LOGGED, Reporter
from shoal.discovery.reviewed.refinement import (
    continue_categories,
    n_clusters_to_continue,
    reuse_names,
)
from shoal.files import make_folder, write_text
from shoal.methods.method import Discovery, Representation, as_discovery, shift_and_cut
from shoal.methods.registry import get_method
from shoal.report.summary import (
    AVERAGE_LINKAGE,
    doubt_estimate,
    doubt_labels,
    suggested_splits,
    summarize_run,
)
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import (
    MIXED_FROM,
    RESULTS,
    THUMBNAILS,
    UNCERTAIN_BELOW,
    Assignment,
    Category,
    Run,
    column,
    locked,
)
from shoal.settings import Plain

# Typical images listed for a category
N_EXEMPLARS = 5

FROZEN, TRAINED = RESULTS


@dataclass(frozen=True, kw_only=True)
class Result:
    """The clusters of a collection as named categories, found with the frozen or the trained
    encoder."""

    discovery: Discovery
    names: Sequence[str]  # (N,) the names of the images
    labels: Ints  # (N,) their given labels, positions in `classes`, -1 for unlabeled
    categories: Ints  # (N,) their categories, positions in `classes`
    classes: Sequence[str]  # (K,) names, the known categories first
    n_known: int
    members: Membership
    # The calibration of the confidence in `members`
    calibration: Calibration
    mixtures: Mixtures
    # (K,) the id of each category: its position, unless a review added or removed categories
    ids: Sequence[int]
    # 'frozen' or 'trained' if images were clustered; empty if embeddings were given
    name: str = ""
    # The folder with the networks and metrics of a trained result
    trained_in: Path | None = None
    # The content of its model.json: the number of trained blocks (None: the number in the encoder's
    # catalog entry); the weight of the frozen embeddings in the blend; the sizes that the networks
    # depend on (`TaskShape`); with a classifier, the category of each of its outputs
    model: Plain = field(default_factory=dict)
    found_at: float = field(default_factory=time.monotonic)


def name_categories(
    discovery: Discovery,
    images: Collection | Embeddings,
    n_neighbors: int,
    *,
    name: str = "",
    held_out: Ints | None = None,
    fallback: Calibration | None = None,
    frozen: Tensor | None = None,
) -> Result:
    """Turn clusters into categories: the known classes in their order, then novel ones by size.

    Parameters
    ----------
    discovery
        The clusters.
    images
        The images with their labels; after a review, the names, ids and cannot-links of the
        reviewed categories are kept.
    n_neighbors
        Number of neighbors; confidence is the calibrated share of them in the same category.
    name
        The name of the result.
    held_out
        Rows whose labels were held out from training and so can calibrate confidence; all labeled
        rows if not given.
    fallback
        The calibration to use if there are too few labels.
    frozen
        Frozen unit embeddings (N, D), in which mixed categories are detected; those of `discovery`
        if not given.
    """
    labels = images.labels
    n_known = len(images.classes)
    categories, n_novel = number_clusters(discovery.clusters, labels, n_known, discovery.embeddings)
    points = from_numpy(np.ascontiguousarray(discovery.embeddings))
    neighbors = discovery.neighbors or other_neighbors(points, n_neighbors)
    neighbors = neighbors.each(Tensor.cpu)
    names = category_names(images.classes, n_novel)
    ids = list(range(len(names)))
    cannot_links: dict[int, set[int]] = {}
    if isinstance(images, Collection) and images.previous is not None:
        categories, names, ids, cannot_links = reuse_names(
            categories, points, images, images.previous
        )
    n_categories = len(names)
    members = describe(points, categories, neighbors, points, categories, n_known)
    second = members.second.copy()
    for row, rejected in cannot_links.items():
        if second[row] in rejected:
            second[row] = UNLABELED
    calibration = _calibrate(discovery, labels, n_known, neighbors, held_out)
    if calibration.label_rate is None and fallback is not None and fallback.label_rate is not None:
        calibration = replace(fallback, is_from_frozen=True)
    calibration = calibration.for_novel(n_categories - n_known)
    confidence = calibration.confidence(members.confidence, categories, labels != UNLABELED)
    mixtures = find_mixtures(points if frozen is None else frozen, categories, labels, n_categories)
    # An image in a part that may be another category is less likely to be correct.
    is_doubted = mixtures.is_apart & (labels == UNLABELED)
    confidence = confidence * np.where(is_doubted, 1 - mixtures.probability[categories], 1.0)
    return Result(
        discovery=discovery,
        names=images.names,
        labels=labels,
        categories=categories,
        classes=names,
        ids=ids,
        n_known=n_known,
        members=replace(members, confidence=confidence, second=second),
        calibration=calibration,
        mixtures=mixtures,
        name=name,
    )


def _calibrate(
    discovery: Discovery, labels: Ints, n_known: int, neighbors: Neighbors, held_out: Ints | None
) -> Calibration:
    """Calibrate the share of neighbors in the same cluster, using the clusters without must-links,
    which labels have not influenced."""
    clusters = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    categories, n_novel = number_clusters(clusters, labels, n_known, discovery.embeddings)
    return calibrate(
        categories,
        labels,
        same_category_share(neighbors, categories, categories),
        neighbors.indices.cpu().numpy(),
        discovery.embeddings,
        n_categories=n_known + n_novel,
        n_known=n_known,
        held_out=held_out,
    )


def write_result(run: Run, named: Result, shift: ShiftSettings) -> None:
    discovery = named.discovery
    run.write_array("embeddings", discovery.embeddings)
    for name, array in (("shifted", discovery.shifted), ("tree", discovery.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_assignments(assignment_rows(named))
    run.write_categories(category_rows(named, run.array(run.clustered)))
    run.write_json("estimate", _estimate(discovery))
    calibration = named.calibration.to_dict()
    calibration["seen"] = fit_seen_probability(
        from_numpy(np.ascontiguousarray(discovery.embeddings)),
        named.categories,
        named.members.outlier_score,
        shift.n_neighbors,
    )
    run.write_json("calibration", calibration)
    if discovery.accuracies:
        shifts = {
            "accuracies": nan_to_null(list(discovery.accuracies)),
            "chosen": discovery.n_shifts,
            "n_neighbors": shift.n_neighbors,
            "alpha": shift.alpha,
            "linkage_method": discovery.linkage_method,
        }
        run.write_json("shifts", shifts)
    if named.trained_in is not None:
        trained = Run(named.trained_in)
        trained.copy_model(run)
        run.write_json("model", named.model)
        if trained.path != run.path:
            trained.share("metrics.jsonl", run)


def _estimate(discovery: Discovery) -> Plain:
    """Return the content of estimate.json."""
    estimate = discovery.estimate
    content: Plain = {
        "n_clusters": discovery.n_clusters,
        "rule": discovery.n_clusters_source or "given",
        "is_given": not discovery.n_clusters_source,
        "interval": None,
        "range": None,
        "curve": None,
    }
    if estimate is not None:
        content |= {
            "rule": estimate.rule,
            "is_given": False,
            "interval": estimate.interval,
            "range": estimate.range or None,
            "curve": {
                "n_clusters": estimate.curve.n_clusters.tolist(),
                "accuracy": estimate.curve.accuracy.tolist(),
            },
        }
    return content


def assignment_rows(named: Result) -> Iterator[Assignment]:
    members = named.members
    is_marked = named.mixtures.probability >= MIXED_FROM
    is_apart = named.mixtures.is_apart & is_marked[named.categories]
    for i, name in enumerate(named.names):
        category = int(named.categories[i])
        yield Assignment(
            path=name,
            label_given=_name(named, int(named.labels[i])),
            category_id=named.ids[category],
            category=named.classes[category],
            is_novel=category >= named.n_known,
            confidence=float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=_name(named, int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=_name(named, int(members.second[i])),
            is_apart=bool(is_apart[i]),
        )


def category_rows(named: Result, clustered: Floats) -> list[Category]:
    """Return a row per category, known ones first, including those without images.

    The tree of categories is that of `clustered` (N, D), the embeddings that were clustered.
    """
    members = [np.flatnonzero(named.categories == at) for at in range(len(named.classes))]
    with_images = [at for at, rows in enumerate(members) if len(rows)]
    tree = CategoryTree.of_members(
        [named.classes[at] for at in with_images],
        [members[at] for at in with_images],
        clustered,
    )
    parents = tree.parent_names
    return [
        _category_row(named, at, rows, parents.get(named.classes[at], ""))
        for at, rows in enumerate(members)
    ]


def _category_row(named: Result, category: int, rows: Ints, parent: str) -> Category:
    members = named.members
    typical = sorted(rows.tolist(), key=lambda row: (-members.typicality[row], named.names[row]))
    # For a novel category: the known category that is most often nearest to its images.
    nearest = UNLABELED
    similarity = float("nan")
    near = members.nearest_known[rows]
    if category >= named.n_known and (near != UNLABELED).any():
        nearest = int(np.bincount(near[near != UNLABELED]).argmax())
        similarity = _mean(members.nearest_known_similarity[rows[near == nearest]])
    return Category(
        category_id=named.ids[category],
        category=named.classes[category],
        is_novel=category >= named.n_known,
        size=len(rows),
        n_labeled=int((named.labels[rows] != UNLABELED).sum()),
        confidence=_mean(members.confidence[rows]) if len(rows) else 0.0,
        nearest_known=_name(named, nearest),
        nearest_known_similarity=similarity,
        exemplars=tuple(named.names[row] for row in typical[:N_EXEMPLARS]),
        mixed_probability=float(named.mixtures.probability[category]),
        parent=parent,
    )


def _mean(values: Floats) -> float:
    """Return the mean, exactly summed: numpy's last bits depend on the order of the images."""
    return math.fsum(values) / len(values)


def _name(named: Result, category: int) -> str:
    return "" if category == UNLABELED else named.classes[category]


def report_doubts(discovery: Discovery, labels: Ints, reporter: Reporter) -> None:
    """Report a note on average linkage, and one on an estimate of K from few labels (N,)."""
    if discovery.linkage_method == "average":
        reporter.report(AVERAGE_LINKAGE)
    known = labels[labels >= 0]
    doubt = doubt_labels(len(known), len(np.unique(known)))
    if discovery.estimate is not None and doubt:
        reporter.report(f"note: {doubt}")


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
    run.drop(
        *("accuracy.json", "map.npz", "model.safetensors", "model.json", "report.html"),
        *("shifted.npy", "shifts.json", "tree.npy"),
    )
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
    shift = settings.inference.shift
    with locked(out):
        run = Run.create(out, force=force)
        run.start(
            settings,
            seed=0,
            device=str(torch_device),
            command=command,
            n_images=len(points),
            n_labeled=int((labels != UNLABELED).sum()),
        )
        with reporter.progress(CLUSTERING):
            inference = infer(points, labels, settings.n_clusters, settings.inference, is_unit=True)
        discovery = as_discovery(inference, points)
        report_doubts(discovery, labels, reporter)
        named = name_categories(discovery, embeddings, shift.n_neighbors)
        write_result(run, named, shift)
        run.finish()
    return run
