"""The first answer, by the encoder as it comes, and how well that encoder tells the known
categories apart.

The latter is measured by given labels alone; where it hardly does, it is said what to do.

L labeled images, D columns.
"""

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.neighbors import k_nearest
from shoal.data.collection import Collection
from shoal.discovery.answers import FROZEN, Answer, cluster, keep_answer, make_answer
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import CLUSTERING, NOTE
from shoal.discovery.reviewed.reviewed_clusters import go_on, reviewed_number
from shoal.encoders.catalog import get_info, is_available
from shoal.methods.clusters import Discovery, Representation, linkage_in_words, shift_and_cut
from shoal.methods.registry import get_method
from shoal.runs import Run
from shoal.words import doubt_labels

OTHER = "dinov2-small"
"""The encoder that is named where another one hardly sees the categories."""

MIN_JUDGED = 20
"""Labeled images below which nothing is said."""

HARDLY = 0.35
"""Share of the way from chance to no error; below it an encoder hardly sees the categories
(benchmarks/results, chosen on CUB-200 and Flowers-102)."""


def answer_first(job: Job, images: EmbeddedImages) -> Answer:
    """The answer without training. Where another will follow it is a run of its own at once, to be
    looked at."""
    collection = images.collection
    say = job.reporter.say
    with job.reporter.progress(CLUSTERING):
        answer = answer_frozen(images.frozen, collection, job.settings)
    if job.settings.is_trained:
        first = Run(job.run.path / FROZEN)
        page = first.path / "report.html"
        if not (first.is_finished and page.is_file()):
            with job.reporter.progress("writing the first report"):
                keep_answer(job.run, answer, job.settings)
        words = answer.in_words(first)
        say(f"Frozen result: {words} Open {page} while training continues.")
    if joined := linkage_in_words(answer.discovery):
        say(joined)
    if answer.discovery.estimate is not None:
        n_known = int((collection.class_sizes > 0).sum())
        if doubt := doubt_labels(collection.n_labeled, n_known):
            say(f"{NOTE}{doubt}")
    measured = nearest_label_accuracy(images.frozen.embeddings, collection.labels)
    job.run.note(encoder_sees=measured and asdict(measured))
    advice = measured and advise_encoder(measured, job.settings.of_method.encoder)
    if advice:
        say(f"{NOTE}{advice}")
    return answer


def answer_frozen(
    frozen: Representation, collection: Collection, settings: DiscoverySettings
) -> Answer:
    """The answer by the encoder as it comes; after a review it goes on from the categories that
    people left."""
    number = None if collection.earlier is None else reviewed_number(collection, settings)
    discovery = cluster_frozen(frozen, collection.labels, settings, number)
    if number is not None:
        discovery, collection = go_on(discovery, frozen.embeddings, collection)
    return make_answer(FROZEN, discovery, collection, settings)


def cluster_frozen(
    frozen: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Put images into clusters by the encoder as it comes: in one way, whatever method will train
    it."""
    if not get_method(settings.method).trains:
        return cluster(frozen, labels, settings, n_clusters)
    return shift_and_cut(
        frozen,
        labels,
        settings.of_method.inference,
        n_clusters=settings.n_clusters or n_clusters,
        seed=settings.seed,
        device=frozen.embeddings.device,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestLabelAccuracy:
    """How often the nearest labeled image of a labeled image is of its category."""

    accuracy: float
    chance: float
    """How often any other labeled image would be."""
    n_images: int
    """Labeled images of categories that have two or more."""

    @property
    def share(self) -> float:
        """Share of the way from chance to no error."""
        return (self.accuracy - self.chance) / (1 - self.chance)


def nearest_label_accuracy(embeddings: Tensor, labels: Ints) -> NearestLabelAccuracy | None:
    """Compare each labeled image with its nearest labeled one; None where there are too few, or one
    category.

    `embeddings` (N, D) are unit rows, `labels` (N,) are -1 for unlabeled.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    given = labels[labeled]  # (L,)
    sizes = np.bincount(given)
    is_judged = sizes[given] > 1
    if is_judged.sum() < MIN_JUDGED or (sizes > 0).sum() < 2:
        return None
    points = embeddings[torch.from_numpy(labeled).to(embeddings.device)]
    rows = torch.arange(len(points), device=points.device)
    nearest = k_nearest(points, points, 1, exclude=rows).indices[:, 0].cpu().numpy()  # (L,)
    others = (sizes[given] - 1) / (len(given) - 1)
    return NearestLabelAccuracy(
        accuracy=float((given[nearest] == given)[is_judged].mean()),
        chance=float(others[is_judged].mean()),
        n_images=int(is_judged.sum()),
    )


def advise_encoder(measured: NearestLabelAccuracy, encoder: str) -> str | None:
    """What to do about an encoder that hardly sees the categories; nothing where it does, or is of
    the other's kind."""
    if measured.share >= HARDLY or encoder.partition("-")[0] == OTHER.partition("-")[0]:
        return None
    how = f"--encoder {OTHER} may"
    if not is_available(OTHER):
        size = f"{get_info(OTHER).size_mb} MB"
        how = f"{OTHER} may: `shoal encoders get {OTHER}` downloads it ({size}), once"
    return (
        f"{encoder} barely tells the categories apart: of {measured.n_images:,} labeled images "
        f"{100 * measured.accuracy:.0f} % have a nearest labeled image of their own category, "
        f"by chance {100 * measured.chance:.0f} %; {how}"
    )
