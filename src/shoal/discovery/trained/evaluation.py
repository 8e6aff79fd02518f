"""Evaluation on held-out labels: of the frozen encoder, of a training in progress, and in the end.

N images, D and E columns of embeddings, J held-out images.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.average import LinkageMethod
from shoal.clustering.blend import (
    USUAL_WEIGHT,
    WEIGHTS,
    TriedWeight,
    blend,
    looks_at_all,
    sample_rows,
    try_weights,
)
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.matching import put_right
from shoal.discovery.reporter import Listener
from shoal.discovery.trained.choice import Choice, can_be_significant, is_significant
from shoal.discovery.trained.held_out import HeldOut
from shoal.discovery.trained.training_job import TrainingJob
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import Run, damaged
from shoal.training.collapse import is_collapsed
from shoal.training.loop import Verdict
from shoal.words import percent

MOMENTS = (0.25, 0.5, 0.75)
"""Shares of the epochs after which a trial is evaluated before its end."""

FEW_WEIGHTS = (USUAL_WEIGHT,)
"""Weights of the frozen encoder that are tried then. One says whether to go on, and each costs up to seven trees."""

TRAINED_WEIGHTS = tuple(weight for weight in WEIGHTS if weight < 1)
"""Weights that are tried in the end."""

OWN_WEIGHTS = (0.0, USUAL_WEIGHT)
"""The same where a method clusters its own way, which may take as long as training."""

OwnClusters = Callable[[Tensor, Ints], Ints]
"""From embeddings (M, D) and labels (M,) to clusters (M,), as a method makes them that does not shift."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """The held-out images, and what is clustered to evaluate a result by their labels."""

    frozen: Tensor
    """(N, D) the embeddings of the encoder as it came."""
    labels: Ints
    """(N,)"""
    classes: Sequence[str]
    held_out: HeldOut
    n_clusters: int
    """The same for all that is compared."""
    inference: InferenceSettings
    seed: int
    linkage_method: LinkageMethod = "ward"
    usual_shifts: int = 0
    """Those of the first result."""
    first_cuts: Sequence[Ints] = ()
    """(N,) each: clusters of the frozen embeddings after 0, 1, 2 … shifts, where the first result has them."""
    own_clusters: OwnClusters | None = None

    @classmethod
    def of(cls, job: TrainingJob, held_out: HeldOut) -> "Evaluation":
        """The evaluation of the trainings of a run."""
        first = job.first.discovery
        return cls(
            frozen=job.frozen.embeddings,
            labels=job.images.collection.labels,
            classes=job.images.collection.classes,
            held_out=held_out,
            n_clusters=first.n_clusters,
            inference=job.settings.of_method.inference,
            seed=job.settings.seed,
            linkage_method=first.linkage_method,
            usual_shifts=first.n_shifts,
            first_cuts=known_cuts(first),
            own_clusters=own_clusters(job),
        )

    @cached_property
    def of_frozen(self) -> Sequence[TriedWeight]:
        """What the labels say of the frozen embeddings alone; nothing where these are too much alike."""
        return self._try(self.frozen, (1.0,))

    @property
    def can_be_significant(self) -> bool:
        """Whether any result of training could be significantly better than the frozen one."""
        return all(can_be_significant(one.right) for one in self.of_frozen)

    def choose(self, learned: Representation) -> Choice:
        """How much of the frozen encoder is to be kept beside what was learned."""
        weights = TRAINED_WEIGHTS if self.own_clusters is None else OWN_WEIGHTS
        return self.compare(learned.embeddings, learned.predicted, weights)

    def compare(self, trained: Tensor, predicted: Ints | None, weights: Sequence[float]) -> Choice:
        """Try weights below 1 of the frozen embeddings beside the trained (N, E).

        Of collapsed embeddings nothing is tried. Where a classifier has `predicted` clusters (N,), these stand for the
        trained encoder, and there is nothing between them and the frozen one.
        """
        has_collapsed = is_collapsed(trained)
        tried: Sequence[TriedWeight]
        if has_collapsed:
            tried = []
        elif predicted is not None:
            tried = [TriedWeight(weight=0.0, n_shifts=0, right=self._right(predicted))]
        elif self.own_clusters is not None:
            tried = self._try_own(trained, weights, self.own_clusters)
        else:
            tried = self._try(trained, weights)
        return Choice(
            hidden=tuple(self.classes[label] for label in self.held_out.hidden),
            tried=[*tried, *self.of_frozen],
            is_collapsed=has_collapsed,
        )

    def _right(self, clusters: Ints) -> Bools:
        """(J,) which held-out images are right in clusters (N,)."""
        rows = self.held_out.rows
        return put_right(self.labels[rows], clusters[rows])

    def _try_own(
        self, trained: Tensor, weights: Sequence[float], cluster: OwnClusters
    ) -> list[TriedWeight]:
        """Try weights by the method's own clusters, which see every label but the held-out ones."""
        held_out = self.held_out.rows
        given = self.labels.copy()
        given[held_out] = UNLABELED
        rows = sample_rows(len(self.labels), held_out, self.n_clusters, self.seed)
        kept = torch.from_numpy(rows).to(trained.device)
        at = np.searchsorted(rows, held_out)
        tried = []
        for weight in weights:
            with suppress(TooFewDistinct):
                clusters = cluster(blend(self.frozen[kept], trained[kept], weight), given[rows])
                right = put_right(self.labels[held_out], clusters[at])
                tried.append(TriedWeight(weight=weight, n_shifts=0, right=right))
        return tried

    def _try(self, trained: Tensor, weights: Sequence[float]) -> list[TriedWeight]:
        return try_weights(
            self.frozen,
            trained,
            self.labels,
            self.held_out.rows,
            self.n_clusters,
            self.inference,
            seed=self.seed,
            weights=weights,
            linkage_method=self.linkage_method,
            usual_shifts=self.usual_shifts,
            first_cuts=self.first_cuts,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """A training without the held-out labels, and what these say of its best epoch."""

    job: TrainingJob
    """With the depth that was tried."""
    folder: Path
    learned: Representation
    choice: Choice

    @property
    def n_right(self) -> int:
        """How many held-out images are right with the weight that is kept."""
        return int(self.choice.chosen.right.sum())

    @property
    def depth(self) -> int | None:
        """How many blocks were trained; None: what the encoder's catalog entry says."""
        depth: int | None = self.job.settings.of_method.n_tail_blocks
        return depth

    @property
    def accuracy(self) -> float:
        """Held-out accuracy with the weight that is kept."""
        return self.n_right / self.choice.n_images


def known_cuts(first: Discovery) -> tuple[Ints, ...]:
    """The clusters of the first result after each shift; none where fewer images, or another K, are looked at."""
    is_whole = looks_at_all(len(first.clusters), first.n_clusters)
    if is_whole and all(int(cut.max()) + 1 == first.n_clusters for cut in first.cuts):
        return first.cuts
    return ()


def own_clusters(job: TrainingJob) -> OwnClusters | None:
    """How the method clusters embeddings with the first result's K; None where it shifts, or predicts."""
    method = get_method(job.settings.method)
    if method.shifts or method.needs_n_clusters:
        return None

    def cluster(embeddings: Tensor, labels: Ints) -> Ints:
        return method.cluster(
            replace(job.frozen, embeddings=embeddings),
            labels,
            job.settings.of_method,
            n_clusters=job.first.discovery.n_clusters,
            device=embeddings.device,
        ).clusters

    return cluster


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedEpoch:
    """What the held-out images say of a trial after some epochs."""

    epoch: int
    right: Bools | None
    """(J,) which of them the best weight with training puts right; None where none could be tried."""

    @classmethod
    def of(cls, epoch: int, choice: Choice) -> "EvaluatedEpoch":
        """The best weight with training of a choice."""
        rights = [one.right for one in choice.tried if one.weight < 1]
        best = max(rights, key=lambda right: int(right.sum()), default=None)
        return cls(epoch=epoch, right=best)

    @property
    def n_right(self) -> int:
        """How many of them."""
        return -1 if self.right is None else int(self.right.sum())

    @property
    def accuracy(self) -> float:
        """Share of them."""
        return float("nan") if self.right is None else float(self.right.mean())


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialStopping:
    """Ends a trial early that cannot help, that helped more before, or that can rise no further.

    What is found is kept in the trial's judged.json, so that a resumed trial ends where an uninterrupted one does.
    """

    evaluation: Evaluation
    trial: Run
    n_epochs: int
    say: Listener

    @property
    def epochs(self) -> list[int]:
        """The epochs, counted from 1, after which the trial is evaluated before its end."""
        shares = {max(1, round(share * self.n_epochs)) for share in MOMENTS}
        return sorted(shares - {self.n_epochs})

    def __call__(self, epoch: int, embeddings: Tensor, predicted: Ints | None) -> Verdict:
        """Compare an epoch with the frozen encoder, and with the epochs before it."""
        choice = self.evaluation.compare(embeddings, predicted, FEW_WEIGHTS)
        now = EvaluatedEpoch.of(epoch, choice)
        before = [one for one in read_evaluated(self.trial) if one.epoch < epoch]
        if epoch in self.epochs:  # else the user has stopped it here, and a resumed trial goes on
            write_evaluated(self.trial, [*before, now])
        best = best_epoch([*before, now])
        reason = ""
        if choice.is_hopeless:
            reason = "held-out accuracy is significantly below that of the frozen result"
        elif best is not now:
            fall = f"from {percent(best.accuracy)} to {percent(now.accuracy)}"
            reason = f"held-out accuracy has fallen significantly, {fall}"
        elif now.right is not None and now.right.all():
            reason = "all held-out labels are right"
        if reason and epoch < self.n_epochs:
            self.say(f"training is ended after {epoch} of {self.n_epochs} epochs: {reason}")
        return Verdict(is_best=best is now, is_over=bool(reason))


def best_epoch(evaluated: Sequence[EvaluatedEpoch]) -> EvaluatedEpoch:
    """The last epoch, unless an earlier one is significantly better: then the best of all.

    An earlier one is the best of several, and by chance often a little better.
    """
    last = evaluated[-1]
    best = max(evaluated, key=lambda one: one.n_right)
    if best.right is None or last.right is None:
        return last
    return best if is_significant(best.right, last.right) else last


def write_evaluated(trial: Run, evaluated: Sequence[EvaluatedEpoch]) -> None:
    """Keep what was found after each epoch."""
    moments: list[dict[str, Any]] = [
        {"epoch": one.epoch, "right": None if one.right is None else one.right.astype(int).tolist()}
        for one in evaluated
    ]
    trial.write_json("judged", {"moments": moments})


def read_evaluated(trial: Run) -> list[EvaluatedEpoch]:
    """What was found after each epoch so far."""
    if not trial.has("judged.json"):
        return []
    evaluated = []
    try:
        for one in trial.json("judged")["moments"]:
            right = None
            if one["right"] is not None:
                right = np.array(one["right"], dtype=bool)
            evaluated.append(EvaluatedEpoch(epoch=int(one["epoch"]), right=right))
    except (KeyError, TypeError, ValueError) as error:
        file = trial.path / "judged.json"
        raise damaged(file, "it does not hold what held-out labels say") from error
    return evaluated
