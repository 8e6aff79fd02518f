"""The trained result: train the encoder's tail and a head, and compare with the frozen result.

The encoder is trained without the held-out labels, which then choose between the frozen and the
trained result. With too few known categories to hold any out, it is trained only if the user asks
for it.
"""

import time
from dataclasses import asdict, replace

import numpy as np
import torch

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.blend import FROZEN_WEIGHT, blend
from shoal.clustering.iterates import check_distinct, unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.discovery_settings import CPU_RECIPE, DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.named_categories import Result, name_categories
from shoal.discovery.reporter import CLUSTERING
from shoal.discovery.results import TRAINED, cluster
from shoal.discovery.trained.evaluation import (
    MIN_CATEGORIES,
    Evaluation,
    HeldOut,
    describe_held_out,
    fit_batch,
    hold_out,
    is_significant,
)
from shoal.discovery.trained.training import (
    Training,
    note_stopped,
    stop_request,
    time_after_training,
    train,
    training_deadline,
)
from shoal.errors import TooFewDistinct
from shoal.methods.method import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.settings import Plain
from shoal.training.validation import is_collapsed
from shoal.words import count

KEEPING_FROZEN = "Keeping the frozen result."


def train_and_choose(
    job: Job, images: EmbeddedImages, frozen: Result
) -> tuple[Result, Result | None]:
    """Train, cluster, and return the result to use and the other one.

    The other result is None if nothing was trained, or if the trained embeddings have collapsed or
    have too few distinct rows for the number of categories.
    """
    # Not even the held-out labels are evaluated if no time is left for training.
    if time.monotonic() >= training_deadline(job, images, job.settings.max_minutes):
        note_stopped(job, len(job.run.metrics), job.settings.trained)
        job.reporter.report(KEEPING_FROZEN)
        return frozen, None
    collection = images.collection
    held_out = hold_out(collection, job.settings)
    for line in describe_held_out(collection, held_out):
        job.reporter.report(line)
    settings = fit_batch(job.settings, len(collection), job.reporter)
    evaluation = None
    # Learned attention applies only to the embeddings it was trained with, so it cannot cluster a
    # blend.
    if held_out.hidden and settings.shift.aggregation != "attention":
        evaluation = Evaluation(
            job=replace(job, settings=settings),
            images=images,
            held_out=held_out,
            frozen_discovery=frozen.discovery,
        )
        with job.reporter.progress("evaluating the frozen result"):
            _ = evaluation.frozen  # computed once and cached
    reason = reason_not_to_train(settings, evaluation)
    if reason:
        job.reporter.report(f"Skipping training: {reason}. {KEEPING_FROZEN}")
        return frozen, None
    if settings.recipe == CPU_RECIPE:
        job.reporter.report(
            f"using the recipe {CPU_RECIPE}, a shorter schedule for machines without a GPU; "
            "--recipe gpu trains as on a GPU"
        )
    n_clusters = settings.n_clusters
    if get_method(settings.method).needs_n_clusters:
        n_clusters = frozen.discovery.n_clusters
    chosen = settings.trained
    if evaluation is not None:
        # The evaluation chooses the snapshot; the validation accuracy does not.
        chosen = replace(chosen, training=replace(chosen.training, snapshot="last"))
    training = Training(
        method=settings.method,
        settings=chosen,
        labels=held_out.labels,
        validation=held_out.validation,
        n_clusters=n_clusters,
        folder=job.run.path,
    )
    with stop_request(training_deadline(job, images, settings.max_minutes)) as stop:
        job = replace(job, settings=settings, stop=stop)
        epochs = count(chosen.training.epochs, "epoch")
        job.reporter.report(
            f"Training for up to {epochs}. Ctrl-C stops and keeps the best result so far; a second "
            "Ctrl-C quits. --resume continues after either."
        )
        try:
            after = time_after_training(frozen)
            learned = train(job, images, training, early_stopping=evaluation, after=after)
            images.trunk_outputs.free()
            if learned is None:
                job.reporter.report(KEEPING_FROZEN)
                return frozen, None
            return _choose(job, images, frozen, held_out, training, learned, evaluation)
        except TooFewDistinct as error:
            job.reporter.report(
                f"note: the trained embeddings cannot be clustered ({error}). {KEEPING_FROZEN}"
            )
            return frozen, None


def reason_not_to_train(settings: DiscoverySettings, evaluation: Evaluation | None) -> str:
    """Return why training is skipped: held-out labels could not show that it helps; else ''.

    `evaluation` is None if no category can be held out, or with learned attention.
    """
    if evaluation is not None and evaluation.frozen is None:
        return "the embeddings of the held-out images are too similar to evaluate it"
    if settings.train is True or settings.hidden_share == 0:
        return ""
    remedy = "; give --train to train anyway"
    if evaluation is None:
        cause = f"fewer than {MIN_CATEGORIES} known categories have two or more labeled images"
        if settings.shift.aggregation == "attention":
            cause = "the method learns attention"
        return f"{cause}, so no category can be held out to evaluate it{remedy}"
    assert evaluation.frozen is not None
    is_correct = evaluation.frozen.is_correct
    if not is_significant(np.ones_like(is_correct), is_correct):
        correct = f"{int(is_correct.sum()):,} of {count(len(is_correct), 'held-out image')}"
        return (
            f"{correct} are assigned correctly without it, so no result could be significantly "
            f"better{remedy}"
        )
    return ""


def _choose(
    job: Job,
    images: EmbeddedImages,
    frozen: Result,
    held_out: HeldOut,
    training: Training,
    learned: Representation,
    evaluation: Evaluation | None,
) -> tuple[Result, Result | None]:
    """Cluster the trained embeddings; held-out labels choose between the results.

    Without held-out categories the trained result is used if training is done.
    """
    is_requested = job.settings.hidden_share == 0  # by --protocol or --set
    is_used = is_requested or learned.is_done
    weight = 0.0
    # Learned attention applies only to the embeddings it was trained with, so it cannot cluster a
    # blend.
    has_blend = learned.predicted is None and job.settings.shift.aggregation != "attention"
    if not is_requested and has_blend:
        weight = FROZEN_WEIGHT
    n_shifts = None
    if evaluation is not None:
        choice = evaluation.compare(learned.embeddings, learned.predicted)
        job.run.write_json("choice", choice.to_dict() | {"epochs": learned.epoch})
        job.reporter.report(choice.in_words())
        if choice.trained is None:
            return frozen, None
        is_used = choice.is_significant
        n_shifts = choice.trained.n_shifts
    elif not is_requested:
        # Check before blending: blended with frozen embeddings, collapsed ones look distinct.
        if is_collapsed(learned.embeddings):
            job.reporter.report(KEEPING_FROZEN)
            return frozen, None
        check_distinct(unit_tree(learned.embeddings), frozen.discovery.n_clusters)
        if not learned.is_done:
            job.reporter.report(
                f"No labels are held out to evaluate unfinished training. {KEEPING_FROZEN}"
            )
    with job.reporter.progress(CLUSTERING):
        if is_requested:
            discovery = _cluster_alone(job, images, frozen.discovery, learned, held_out.validation)
        else:
            discovery = _cluster_blend(job, images, frozen.discovery, learned, weight, n_shifts)
    result = name_categories(
        discovery,
        images.collection,
        job.settings.shift.n_neighbors,
        name=TRAINED,
        held_out=held_out.rows,
        fallback=frozen.calibration,
        frozen=images.frozen.embeddings.cpu(),
    )
    result = with_networks(result, training, learned, weight)
    if is_used:
        return result, frozen
    return frozen, result


def _cluster_blend(
    job: Job,
    images: EmbeddedImages,
    first: Discovery,
    learned: Representation,
    weight: float,
    n_shifts: int | None,
) -> Discovery:
    """Cluster a blend of frozen and trained embeddings, with the frozen result's K and linkage.

    If `n_shifts` is None, labels choose the number of shifts.
    """
    frozen = images.frozen
    embeddings = blend(frozen.embeddings, learned.embeddings, weight)
    both = replace(
        learned,
        n_frozen=embeddings.shape[1] - learned.embeddings.shape[1],
        embeddings=embeddings,
        embed=lambda pixels: blend(frozen.embed(pixels), learned.embed(pixels), weight),
        n_shifts=n_shifts,
        linkage_method=first.linkage_method,
    )
    return _cluster_with_k_of(first, job, images, both)


def _cluster_alone(
    job: Job,
    images: EmbeddedImages,
    first: Discovery,
    learned: Representation,
    validation: Ints | None,
) -> Discovery:
    """Cluster the trained embeddings alone, as the CMS paper does.

    K is that of the frozen result: training pulls the labeled images of a category together, so
    known categories no longer resemble novel ones and are a poor basis for an estimate. Only
    the CMS paper's rule estimates K on the trained embeddings of the validation images, except for
    a method with a classifier, which needs K before training.
    """
    settings = job.settings
    labels = images.collection.labels
    # Labels cannot choose the linkage: training has seen them.
    learned = replace(learned, linkage_method="ward")
    inference = settings.method_settings.inference
    needs_n_clusters = get_method(settings.method).needs_n_clusters
    if settings.n_clusters is None and (needs_n_clusters or inference.rule != "paper"):
        return _cluster_with_k_of(first, job, images, learned)
    discovery = cluster(learned, labels, settings)
    has_source = discovery.estimate is not None or discovery.n_clusters_source
    if has_source or settings.n_clusters is not None or validation is None:
        return discovery
    # K was estimated on the validation images during training; repeat the estimate for
    # estimate.json.
    tree = unit_tree(torch.as_tensor(discovery.embeddings[validation]))
    estimate = estimate_n_clusters(tree, labels[validation], rule=inference.rule)
    clipped = estimate.clipped_to(inference.min_clusters, inference.max_clusters)
    return replace(discovery, estimate=clipped)


def _cluster_with_k_of(
    first: Discovery, job: Job, images: EmbeddedImages, learned: Representation
) -> Discovery:
    """Cluster with the number of categories and the estimate of the frozen result."""
    labels = images.collection.labels
    discovery = cluster(learned, labels, job.settings, first.n_clusters)
    return replace(discovery, estimate=first.estimate, n_clusters_source=first.n_clusters_source)


def with_networks(
    result: Result, training: Training, learned: Representation, frozen_weight: float = 0.0
) -> Result:
    """Return the result with what is needed to load its networks later."""
    assert learned.model is not None
    model: Plain = {
        "n_tail_blocks": training.settings.n_tail_blocks,
        "frozen_weight": frozen_weight,
        "shape": asdict(learned.model.shape),
    }
    if result.discovery.predicted is not None:
        model["classifier"] = _classifier_categories(result, result.discovery.predicted)
    return replace(result, trained_in=training.folder, model=model)


def _classifier_categories(result: Result, predicted: Ints) -> list[int]:
    """Return, for each output of the classifier, the category id of most images that `predicted`
    (N,) assigns to it; -1 if there are none."""
    is_free = result.labels == UNLABELED
    # A label may override a prediction, so labeled images count only if there are no others.
    counts = is_free | ~np.isin(predicted, predicted[is_free])
    both = np.stack([predicted, result.categories])[:, counts]
    pairs, sizes = np.unique(both, axis=1, return_counts=True)
    pairs = pairs[:, np.argsort(sizes, kind="stable")]  # the largest of an output comes last
    categories = np.full(int(predicted.max()) + 1, UNLABELED)
    categories[pairs[0]] = np.asarray(result.ids)[pairs[1]]
    return categories.tolist()
