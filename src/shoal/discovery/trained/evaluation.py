"""Evaluate the frozen result and a training run, in progress and at its end, on held-out labels.

Labels that training has seen are a poor guide: the accuracy on known categories keeps rising while
novel ones fall apart. Therefore training does not see the labels of some images, nor any label of
some known categories, which stand in for novel ones. The images are then clustered on the frozen
embeddings, and on a blend of frozen and trained ones, and the held-out labels choose between the
two. Only labels that the user provided are used here, never the hidden labels of a benchmark.

The blend: training adapts an encoder to the known classes, at the cost of features for others. In
the concatenated row [√w · first, √(1 - w) · second], the squared distance of two images is w times
that in the first embedding plus 1 - w times that in the second. w = 1 is the first embedding, w = 0
the second.

Shapes: N images, D and E columns of two embeddings, J or H held-out images, K clusters.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.inference import (
    InferenceSettings,
    LinkageMethod,
    has_peaked,
    join_small,
    reduce_within_class,
)
from shoal.clustering.matching import correct_images
from shoal.clustering.mean_shift import iterates
from shoal.data.collection import Collection, hold_out_validation
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import Reporter
from shoal.errors import TooFewDistinct, count, first_few
from shoal.methods.method import Discovery
from shoal.methods.registry import get_method
from shoal.report.summary import describe_choice
from shoal.runs import reading
from shoal.settings import Plain
from shoal.training.validation import is_collapsed

# Weight of the frozen embeddings in their blend with trained ones, chosen on samples of four
# collections (benchmarks/results/2026-11-19_h200_one_training.md)
FROZEN_WEIGHT = 0.8

# Largest number of shifts tried; accuracy has stopped rising by then
MAX_SHIFTS = 6

# Embeddings are evaluated on at most `MAX_ROWS` images, or this many per cluster if that is more
MAX_ROWS = 4_000
MIN_PER_CLUSTER = 4

# Fewest known categories for some to be hidden, so that enough are left to learn from
MIN_CATEGORIES = 5

# Significance level of McNemar's exact one-sided test that one result beats another
SIGNIFICANCE = 0.05

# Shares of the epochs after which training is evaluated before its end
EVALUATE_AFTER = (0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class HeldOutAccuracy:
    """Which held-out images (H,) are in the cluster that is matched to their class, after the
    number of shifts with the highest accuracy; on ties, the nearest to the usual one."""

    n_shifts: int
    is_correct: Bools

    @property
    def share(self) -> float:
        return float(self.is_correct.mean())


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A split of the labels into those that training sees and those that evaluate it."""

    # (N,) for training; they include those of validation images, which the loss does not see
    labels: Ints
    # Rows of the validation images; None if no image is labeled
    validation: Ints | None = None
    # Known categories whose labels are all held out, as if they were novel
    hidden: tuple[int, ...] = ()
    # Rows with held-out labels: labeled validation images, and images of hidden categories
    rows: Ints


def hold_out(collection: Collection, settings: DiscoverySettings) -> HeldOut:
    """Sample validation images and hidden categories with the seed of the settings.

    Categories are hidden if at least `MIN_CATEGORIES` have two labeled images or more.
    """
    labels = collection.labels
    if not collection.n_labeled:
        return HeldOut(labels=labels, rows=np.empty(0, dtype=np.int64))
    rng = np.random.default_rng(settings.seed)
    validation = hold_out_validation(labels, share=settings.validation_share, rng=rng)
    candidates = np.flatnonzero(collection.class_sizes > 1)
    hidden = candidates[:0]
    if settings.hidden_share > 0 and len(candidates) >= MIN_CATEGORIES:
        n_hidden = max(1, round(settings.hidden_share * len(candidates)))
        hidden = np.sort(rng.choice(candidates, n_hidden, replace=False))
    is_validation = np.isin(np.arange(len(labels)), validation)
    is_hidden = np.isin(labels, hidden)
    return HeldOut(
        labels=np.where(is_hidden & ~is_validation, UNLABELED, labels),
        validation=validation,
        hidden=tuple(hidden.tolist()),
        rows=np.flatnonzero(collection.is_labeled & (is_validation | is_hidden)),
    )


def describe_held_out(collection: Collection, held_out: HeldOut) -> list[str]:
    if held_out.validation is None:
        return []
    n_labeled = int((collection.labels[held_out.validation] != UNLABELED).sum())
    images = count(len(held_out.validation), "validation image")
    lines = [f"{images}, {n_labeled:,} of them with labels, which are held out from training"]
    if held_out.hidden:
        names = first_few([collection.classes[label] for label in held_out.hidden])
        lines.append(
            f"all labels of {count(len(held_out.hidden), 'known category')} ({names}) held out, to "
            "evaluate training on categories without labels"
        )
    return lines


def fit_batch(
    settings: DiscoverySettings, n_training: int, reporter: Reporter
) -> DiscoverySettings:
    """Return the settings with batches no larger than the number of images, with a note."""
    chosen = settings.trained
    batch_size = chosen.training.batch_size
    if batch_size <= n_training:
        return settings
    reporter.report(
        f"note: using a batch size of {n_training:,}, the number of images, instead of "
        f"{batch_size:,}"
    )
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, method_settings=smaller)


def is_significant(correct: Bools, baseline: Bools) -> bool:
    """Whether significantly more images are `correct` (J,) than in the `baseline` (J,)."""
    n_better = int(np.count_nonzero(correct & ~baseline))
    n_worse = int(np.count_nonzero(baseline & ~correct))
    # The p-value: the probability of at least n_better gains among the images that differ, if gains
    # and losses were equally likely.
    return float(binom.sf(n_better - 1, n_better + n_worse, 0.5)) <= SIGNIFICANCE


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice between the two results by the held-out labels: the frozen one unless training is
    significantly better."""

    # Known categories that served as novel ones
    hidden: tuple[str, ...]
    frozen: HeldOutAccuracy
    # None if the trained embeddings are too similar to be clustered
    trained: HeldOutAccuracy | None

    @property
    def is_significant(self) -> bool:
        if self.trained is None:
            return False
        return is_significant(self.trained.is_correct, self.frozen.is_correct)

    @property
    def result(self) -> str:
        return "trained" if self.is_significant else "frozen"

    @property
    def is_hopeless(self) -> bool:
        """Whether training is significantly worse than the frozen embeddings."""
        if self.trained is None:
            return True
        return is_significant(self.frozen.is_correct, self.trained.is_correct)

    def in_words(self) -> str:
        return f"{describe_choice(self.to_dict())} Keeping the {self.result} result."

    def to_dict(self) -> Plain:
        trained = self.trained
        return {
            "result": self.result,
            "accuracy": {"frozen": self.frozen.share, "trained": trained and trained.share},
            "n_shifts": {"frozen": self.frozen.n_shifts, "trained": trained and trained.n_shifts},
            "is_significant": self.is_significant,
            "n_images": len(self.frozen.is_correct),
            "hidden": list(self.hidden),
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Clusters embeddings, compares the clusters with the held-out labels, and decides after an
    epoch whether training continues."""

    # With the settings of the training run
    job: Job
    images: EmbeddedImages
    held_out: HeldOut
    # The clusters of the frozen result, whose K and linkage all comparisons use
    frozen_discovery: Discovery

    @property
    def settings(self) -> DiscoverySettings:
        return self.job.settings

    @cached_property
    def frozen(self) -> HeldOutAccuracy | None:
        """The accuracy of the frozen embeddings; None if they are too similar to cluster."""
        return self._try_shifts(self._reduced)

    @cached_property
    def _reduced(self) -> Tensor:
        """(N, D) the frozen embeddings with the variance within known classes reduced, as for the
        final result, but without using the held-out labels."""
        frozen = self.images.frozen.embeddings
        if self.settings.method_settings.inference.must_link:
            return reduce_within_class(frozen, self._visible_labels)
        return frozen

    @cached_property
    def _visible_labels(self) -> Ints:
        visible = self.images.collection.labels.copy()
        visible[self.held_out.rows] = UNLABELED
        return visible

    def compare(self, trained: Tensor, predicted: Ints | None) -> Choice:
        """Compare a blend of frozen and trained embeddings (N, E) with the frozen ones.

        If the method has a classifier, the clusters that it `predicted` (N,) are compared instead.
        """
        assert self.frozen is not None
        classes = self.images.collection.classes
        return Choice(
            hidden=tuple(classes[label] for label in self.held_out.hidden),
            frozen=self.frozen,
            trained=self._evaluate(trained, predicted),
        )

    def _evaluate(self, trained: Tensor, predicted: Ints | None) -> HeldOutAccuracy | None:
        # Blended with frozen embeddings, collapsed ones would look distinct.
        if is_collapsed(trained):
            return None
        if predicted is not None:
            rows = self.held_out.rows
            is_correct = correct_images(self.images.collection.labels[rows], predicted[rows])
            return HeldOutAccuracy(n_shifts=0, is_correct=is_correct)
        method = get_method(self.settings.method)
        if method.shifts or method.needs_n_clusters:
            return self._try_shifts(blend(self._reduced, trained, FROZEN_WEIGHT))
        return self._cluster_by_method(trained)

    def _try_shifts(self, points: Tensor) -> HeldOutAccuracy | None:
        """Cluster unit rows (N, E) after the best number of shifts."""
        return try_shifts(
            points,
            self.images.collection.labels,
            self.held_out.rows,
            self.frozen_discovery.n_clusters,
            self.settings.method_settings.inference,
            seed=self.settings.seed,
            linkage_method=self.frozen_discovery.linkage_method,
            usual_shifts=self.frozen_discovery.n_shifts,
        )

    def _cluster_by_method(self, trained: Tensor) -> HeldOutAccuracy | None:
        """Cluster a blend as the method does, with the K of the frozen result and all labels except
        the held-out ones."""
        frozen = self.images.frozen
        labels = self.images.collection.labels
        held_out = self.held_out.rows
        n_clusters = self.frozen_discovery.n_clusters
        rows = sample_rows(len(labels), held_out, n_clusters, self.settings.seed)
        sampled = torch.from_numpy(rows).to(trained.device)
        both = blend(frozen.embeddings[sampled], trained[sampled], FROZEN_WEIGHT)
        with suppress(TooFewDistinct):
            discovery = get_method(self.settings.method).cluster(
                replace(frozen, embeddings=both),
                self._visible_labels[rows],
                self.settings.method_settings,
                n_clusters,
            )
            clusters = discovery.clusters[np.searchsorted(rows, held_out)]
            is_correct = correct_images(labels[held_out], clusters)
            return HeldOutAccuracy(n_shifts=0, is_correct=is_correct)
        return None

    @property
    def epochs(self) -> list[int]:
        """The epochs, counted from 1, after which training is evaluated before its end."""
        n_epochs = self.settings.trained.training.epochs
        epochs = {max(1, round(share * n_epochs)) for share in EVALUATE_AFTER}
        return sorted(epochs - {n_epochs})

    def __call__(self, epoch: int, embeddings: Tensor, predicted: Ints | None) -> tuple[bool, bool]:
        """Return whether this epoch is the best so far, and whether to stop training: because it is
        hopeless, gets worse, or assigns every held-out image correctly."""
        choice = self.compare(embeddings, predicted)
        best = epoch
        reason = ""
        if choice.trained is not None:
            history = self._history(epoch, choice.trained.is_correct)
            best = best_epoch(history)
            if best != epoch:
                reason = "held-out accuracy fell significantly"
            elif history[epoch].all():
                reason = "all held-out images are assigned correctly"
        if choice.is_hopeless:
            reason = "held-out accuracy is significantly below that of the frozen result"
        n_epochs = self.settings.trained.training.epochs
        if reason and epoch < n_epochs:
            self.job.reporter.report(
                f"Stopped training after {epoch} of {n_epochs} epochs: {reason}."
            )
        return best == epoch, bool(reason)

    def _history(self, epoch: int, is_correct: Bools) -> dict[int, Bools]:
        """Return which held-out images were correct after earlier epochs and this one.

        evaluations.json holds them, so that a resumed run stops at the same epoch as an
        uninterrupted one.
        """
        run = self.job.run
        history: dict[int, Bools] = {}
        if run.has("evaluations.json"):
            with reading(run.path / "evaluations.json"):
                for past, correct in run.json("evaluations").items():
                    if int(past) < epoch:
                        history[int(past)] = np.array(correct, dtype=bool)
        history[epoch] = is_correct
        # Evaluations at other epochs (the last one, or where the user stopped training) are not
        # stored: no evaluation follows the last one, and an uninterrupted run does not evaluate
        # the epoch where the user stopped.
        if epoch in self.epochs:
            plain = {str(past): correct.astype(int).tolist() for past, correct in history.items()}
            run.write_json("evaluations", plain)
        return history


def best_epoch(history: Mapping[int, Bools]) -> int:
    """Return the epoch with the most correct held-out images (J,) if it is significantly better
    than the last one, else the last.

    Without the test, the best of several epochs would often be chosen by chance.
    """
    last = max(history)
    best = max(history, key=lambda epoch: int(history[epoch].sum()))
    return best if is_significant(history[best], history[last]) else last


def blend(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Return the blend (N, D + E) of unit rows (N, D) and (N, E); for the weight 0, the second
    unchanged."""
    if weight == 0:
        return second
    return torch.cat([first * weight**0.5, second * (1 - weight) ** 0.5], dim=1)


def try_shifts(
    points: Tensor,
    labels: Ints,
    held_out: Ints,
    n_clusters: int,
    settings: InferenceSettings,
    *,
    seed: int,
    linkage_method: LinkageMethod = "ward",
    usual_shifts: int = 0,
) -> HeldOutAccuracy | None:
    """Cluster unit rows (N, D) after 0, 1, 2 … shifts, evaluate the clusters by the `labels` (N,)
    of the `held_out` rows (H,), and return the best.

    No other label is used, because accuracy on labels that training saw says nothing about
    unlabeled images. Return None if the rows are too similar to be cut into `n_clusters`. With few
    held-out labels, several numbers of shifts are often equally accurate; the one nearest to
    `usual_shifts` is then used.
    """
    rows = sample_rows(len(labels), held_out, n_clusters, seed)
    at = np.searchsorted(rows, held_out)  # (H,)
    sampled = points[torch.from_numpy(rows).to(points.device)]
    outcomes: list[Bools] = []
    for iterate in islice(iterates(sampled, settings.shift), MAX_SHIFTS + 1):
        if not iterate.has_distinct(n_clusters):
            break
        tree = join_small(iterate.points, iterate.tree, n_clusters, linkage_method)
        outcomes.append(correct_images(labels[held_out], tree.cut(n_clusters)[at]))
        if has_peaked([float(is_correct.mean()) for is_correct in outcomes]):
            break
    if not outcomes:
        return None
    n_shifts = max(
        range(len(outcomes)),
        key=lambda shifts: (outcomes[shifts].sum(), -abs(shifts - usual_shifts)),
    )
    return HeldOutAccuracy(n_shifts=n_shifts, is_correct=outcomes[n_shifts])


def sample_rows(n_rows: int, held_out: Ints, n_clusters: int, seed: int) -> Ints:
    """Return the rows (M,), ascending, that embeddings are evaluated on: all held-out ones, and a
    random sample of the others."""
    n_wanted = max(MAX_ROWS, MIN_PER_CLUSTER * n_clusters)
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    others = np.setdiff1d(np.arange(n_rows), held_out)
    n_others = min(len(others), max(n_wanted - len(held_out), len(held_out)))
    sampled = np.random.default_rng(seed).choice(others, n_others, replace=False)
    return np.sort(np.concatenate([held_out, sampled]))
