"""Evaluate the frozen result and a training run, in progress and at its end, on held-out labels.

Labels that training has seen are a poor guide: the accuracy on known categories keeps rising while
novel ones fall apart. Therefore a trial hides all labels of some known categories, which stand in
for novel ones. The images are then clustered on the frozen embeddings, on the trained ones and on
blends of both, and the held-out labels choose among these. Only labels that the user provided are
used here, never the hidden labels of a benchmark.

Shapes: N images, E columns of embeddings, J held-out images.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.blend import (
    USUAL_WEIGHT,
    WEIGHTS,
    TriedWeight,
    blend,
    choose_weight,
    sample_rows,
    try_weights,
)
from shoal.clustering.matching import correct_images
from shoal.clustering.within_class import reduce_within_class
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages
from shoal.discovery.reporter import Listener
from shoal.discovery.trained.held_out import HeldOut
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import Run, damaged
from shoal.training.collapse import is_collapsed
from shoal.training.loop import EpochDecision
from shoal.words import count, percent

SIGNIFICANCE = 0.05
"""Significance level of McNemar's exact one-sided test that one result beats another."""

EVALUATE_AFTER = (0.25, 0.5, 0.75)
"""Shares of the epochs after which a trial is evaluated before its end."""

EARLY_WEIGHTS = (USUAL_WEIGHT,)
"""Weights of the frozen embeddings that these evaluations try; each may require seven trees, one
per number of shifts."""

FINAL_WEIGHTS = tuple(weight for weight in WEIGHTS if weight < 1)
"""Weights that the evaluation at the end tries."""

CUSTOM_WEIGHTS = (0.0, USUAL_WEIGHT)
"""The same for methods with their own clustering; each weight may take as long as training."""

CorrectByEpoch = Mapping[int, Bools | None]
"""By epoch: (J,) which held-out images are correct with the best weight below 1; None if no
weight could be tried."""


def is_significant(correct: Bools, baseline: Bools) -> bool:
    """Whether significantly more images are `correct` (J,) than in the `baseline` (J,)."""
    n_better = int(np.count_nonzero(correct & ~baseline))
    n_worse = int(np.count_nonzero(baseline & ~correct))
    # The p-value: the probability of at least n_better gains among the images that differ, if gains
    # and losses were equally likely.
    return float(binom.sf(n_better - 1, n_better + n_worse, 0.5)) <= SIGNIFICANCE


def can_be_significant(baseline: Bools) -> bool:
    """Whether a result without errors would be significantly better than `baseline` (J,)."""
    return is_significant(np.ones_like(baseline), baseline)


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """The weight of the frozen embeddings that held-out labels choose.

    It is 1, the frozen result, unless training is significantly better.
    """

    hidden: tuple[str, ...]
    """Known categories that served as novel ones."""
    tried: Sequence[TriedWeight]
    """Each weight with the held-out images that are correct; the last weight is 1, the frozen
    embeddings alone."""
    is_collapsed: bool = False
    """Whether all trained embeddings have nearly the same direction; only weight 1 is tried."""

    @property
    def frozen(self) -> TriedWeight:
        """The frozen embeddings alone."""
        return self.tried[-1]

    @cached_property
    def trained(self) -> TriedWeight:
        """The best weight below 1; the frozen embeddings alone if no such weight was tried."""
        best = choose_weight(self.tried)
        below_one = [tried for tried in self.tried if tried.weight < 1]
        if best.weight == 1 and below_one:
            return choose_weight(below_one)
        return best

    @property
    def is_significant(self) -> bool:
        """Whether training is significantly better."""
        return is_significant(self.trained.is_correct, self.frozen.is_correct)

    @property
    def chosen(self) -> TriedWeight:
        """The weight of the result that is used."""
        return self.trained if self.is_significant else self.frozen

    @property
    def result(self) -> str:
        """The result that is used: 'trained' or 'frozen'."""
        return "trained" if self.is_significant else "frozen"

    @property
    def is_hopeless(self) -> bool:
        """Whether every weight with training is significantly worse than the frozen embeddings."""
        trained = [tried.is_correct for tried in self.tried if tried.weight < 1]
        return all(is_significant(self.frozen.is_correct, correct) for correct in trained)

    @property
    def n_images(self) -> int:
        """The number of held-out images."""
        return len(self.frozen.is_correct)

    def in_words(self) -> str:
        """Return both accuracies, the number of labels, and the result that is used."""
        labels = count(self.n_images, "label")
        if self.is_collapsed:
            return f"Training collapsed. Keeping the frozen result ({labels} held out)."
        frozen = percent(_accuracy(self.frozen))
        trained = percent(_accuracy(self.trained))
        test = "significant" if self.is_significant else "not significant"
        keeping = f"Keeping the {self.result} result"
        if 0 < self.chosen.weight < 1:
            weight = f"{100 * self.chosen.weight:.0f} %"
            keeping += f", with a weight of {weight} for the frozen embeddings"
        accuracies = f"{frozen} frozen, {trained} trained ({test})"
        return f"Held-out accuracy on {labels}: {accuracies}. {keeping}."

    def to_dict(self) -> dict[str, Any]:
        """Return the content of choice.json."""
        tried = [
            {"weight": tried.weight, "n_shifts": tried.n_shifts, "accuracy": _accuracy(tried)}
            for tried in self.tried
        ]
        return {
            "result": self.result,
            "frozen_weight": self.chosen.weight,
            "n_shifts": self.chosen.n_shifts,
            "accuracy": {"frozen": _accuracy(self.frozen), "trained": _accuracy(self.trained)},
            "is_significant": self.is_significant,
            "n_images": self.n_images,
            "tried": tried,
            "hidden": list(self.hidden),
            "is_collapsed": self.is_collapsed,
        }


def _accuracy(tried: TriedWeight) -> float:
    return float(tried.is_correct.mean())


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Clusters embeddings and compares the clusters with the held-out labels."""

    images: EmbeddedImages
    held_out: HeldOut
    frozen_discovery: Discovery
    """The clusters of the frozen result, whose K and linkage all comparisons use."""
    settings: DiscoverySettings

    @cached_property
    def frozen_tried(self) -> Sequence[TriedWeight]:
        """The evaluation of the frozen embeddings; empty if they are too similar to cluster.

        The variance within the known classes is reduced as in the frozen result, but without the
        held-out labels.
        """
        frozen = self.images.frozen.embeddings
        if self.settings.method_settings.inference.must_link:
            frozen = reduce_within_class(frozen, self._visible_labels)
        return self._try_blends(frozen, frozen, (1.0,))

    @property
    def _labels(self) -> Ints:
        """(N,) all labels of the user."""
        return self.images.collection.labels

    @cached_property
    def _visible_labels(self) -> Ints:
        """(N,) the labels without the held-out ones."""
        visible = self._labels.copy()
        visible[self.held_out.rows] = UNLABELED
        return visible

    @property
    def can_be_significant(self) -> bool:
        """Whether any trained result could be significantly better than the frozen one."""
        return all(can_be_significant(tried.is_correct) for tried in self.frozen_tried)

    @property
    def _has_custom_clustering(self) -> bool:
        """Whether the method clusters in its own way: neither by mean shift nor by a classifier."""
        method = get_method(self.settings.method)
        return not method.shifts and not method.needs_n_clusters

    def choose(self, learned: Representation) -> Choice:
        """Choose the weight of the frozen embeddings in the blend with the trained ones."""
        weights = CUSTOM_WEIGHTS if self._has_custom_clustering else FINAL_WEIGHTS
        return self.compare(learned.embeddings, learned.predicted, weights)

    def compare(self, trained: Tensor, predicted: Ints | None, weights: Sequence[float]) -> Choice:
        """Evaluate blends of frozen and trained embeddings (N, E) with `weights` below 1.

        If a classifier `predicted` clusters (N,), these are evaluated instead, with a weight of 0.
        Collapsed embeddings are not evaluated.
        """
        has_collapsed = is_collapsed(trained)
        tried: Sequence[TriedWeight] = ()
        if predicted is not None and not has_collapsed:
            rows = self.held_out.rows
            correct = correct_images(self._labels[rows], predicted[rows])
            tried = [TriedWeight(weight=0.0, n_shifts=0, is_correct=correct)]
        elif self._has_custom_clustering and not has_collapsed:
            tried = self._try_custom(trained, weights)
        elif not has_collapsed:
            tried = self._try_blends(self.images.frozen.embeddings, trained, weights)
        return Choice(
            hidden=tuple(self.images.collection.classes[label] for label in self.held_out.hidden),
            tried=[*tried, *self.frozen_tried],
            is_collapsed=has_collapsed,
        )

    def _try_blends(
        self, frozen: Tensor, trained: Tensor, weights: Sequence[float]
    ) -> list[TriedWeight]:
        """Shift and cut each blend; leave out blends whose rows are too similar to be cut."""
        return try_weights(
            frozen,
            trained,
            self._labels,
            self.held_out.rows,
            self.frozen_discovery.n_clusters,
            self.settings.method_settings.inference,
            seed=self.settings.seed,
            weights=weights,
            linkage_method=self.frozen_discovery.linkage_method,
            usual_shifts=self.frozen_discovery.n_shifts,
        )

    def _try_custom(self, trained: Tensor, weights: Sequence[float]) -> list[TriedWeight]:
        """Cluster each blend as the method does, with all labels except the held-out ones."""
        held_out = self.held_out.rows
        n_clusters = self.frozen_discovery.n_clusters
        rows = sample_rows(len(self._labels), held_out, n_clusters, self.settings.seed)
        sampled = torch.from_numpy(rows).to(trained.device)
        positions = np.searchsorted(rows, held_out)
        tried = []
        for weight in weights:
            both = blend(self.images.frozen.embeddings[sampled], trained[sampled], weight)
            with suppress(TooFewDistinct):
                clusters = self._cluster(both, self._visible_labels[rows])
                correct = correct_images(self._labels[held_out], clusters[positions])
                tried.append(TriedWeight(weight=weight, n_shifts=0, is_correct=correct))
        return tried

    def _cluster(self, embeddings: Tensor, labels: Ints) -> Ints:
        """Return clusters by the method, with the K of the frozen result."""
        discovery = get_method(self.settings.method).cluster(
            replace(self.images.frozen, embeddings=embeddings),
            labels,
            self.settings.method_settings,
            self.frozen_discovery.n_clusters,
        )
        return discovery.clusters


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialStopping:
    """Stops a trial early if it is hopeless, gets worse, or assigns every held-out image correctly.

    evaluations.json in the trial's folder has the evaluations so far, so that a resumed trial stops
    at the same epoch as an uninterrupted one.
    """

    evaluation: Evaluation
    trial: Run
    n_epochs: int
    report: Listener

    @property
    def epochs(self) -> list[int]:
        """The epochs, counted from 1, after which the trial is evaluated before its end."""
        epochs = {max(1, round(share * self.n_epochs)) for share in EVALUATE_AFTER}
        return sorted(epochs - {self.n_epochs})

    def __call__(self, epoch: int, embeddings: Tensor, predicted: Ints | None) -> EpochDecision:
        """Compare an epoch with the frozen embeddings, and with earlier epochs."""
        choice = self.evaluation.compare(embeddings, predicted, EARLY_WEIGHTS)
        evaluations = read_evaluations(self.trial)
        history = {past: correct for past, correct in evaluations.items() if past < epoch}
        tried = [each.is_correct for each in choice.tried if each.weight < 1]
        now = max(tried, key=lambda correct: int(correct.sum()), default=None)
        history[epoch] = now
        # An evaluation at any other epoch means that the user stopped the trial. It is not stored,
        # because a resumed trial goes past that epoch without one.
        if epoch in self.epochs:
            plain = {
                str(past): correct if correct is None else correct.astype(int).tolist()
                for past, correct in history.items()
            }
            self.trial.write_json("evaluations", plain)
        best = best_epoch(history)
        then = history[best]
        reason = ""
        if choice.is_hopeless:
            reason = "held-out accuracy is significantly below that of the frozen result"
        elif best != epoch and now is not None and then is not None:
            change = f"from {percent(float(then.mean()))} to {percent(float(now.mean()))}"
            reason = f"held-out accuracy fell significantly, {change}"
        elif now is not None and now.all():
            reason = "all held-out images are assigned correctly"
        if reason and epoch < self.n_epochs:
            self.report(f"Stopped training after {epoch} of {self.n_epochs} epochs: {reason}.")
        return EpochDecision(is_best=best == epoch, should_stop=bool(reason))


def best_epoch(history: CorrectByEpoch) -> int:
    """Return the best epoch if it is significantly better than the last one, else the last.

    Without the test, the best of several epochs would often be chosen by chance.
    """
    last = max(history)
    n_correct = {epoch: int(found.sum()) for epoch, found in history.items() if found is not None}
    if last not in n_correct:
        return last
    best = max(n_correct, key=lambda epoch: n_correct[epoch])
    now = history[last]
    then = history[best]
    assert now is not None
    assert then is not None
    return best if is_significant(then, now) else last


def read_evaluations(trial: Run) -> dict[int, Bools | None]:
    """Read evaluations.json of a trial; empty if there is none."""
    if not trial.has("evaluations.json"):
        return {}
    history: dict[int, Bools | None] = {}
    try:
        for epoch, correct in trial.json("evaluations").items():
            history[int(epoch)] = None if correct is None else np.array(correct, dtype=bool)
    except (TypeError, ValueError) as error:
        file = trial.path / "evaluations.json"
        raise damaged(file, "expected lists of 0 and 1 by epoch") from error
    return history
