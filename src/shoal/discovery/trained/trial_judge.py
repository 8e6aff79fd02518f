"""The judge of a trial: labels that the trial does not see say, after some epochs and in the end, what it is worth."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from shoal.clustering.matching import drawn_units, is_worse, put_right
from shoal.discovery.trained.choice import Choice
from shoal.discovery.trained.training_job import MIN_EPOCHS, MIN_TRIAL_EPOCHS, TrainingJob
from shoal.discovery.trained.withheld import Withheld
from shoal.errors import TooFewDistinct
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import Run, damaged
from shoal.training.bank import is_collapsed
from shoal.training.loop import GoesOn

MOMENTS = (0.25, 0.5, 0.75)
"""Shares of the epochs after which a trial is judged before its end."""

FEW_WEIGHTS = (USUAL_WEIGHT,)
"""Weights of the frozen encoder that are tried then. One says whether to go on, and each costs up to seven trees."""

OWN_WEIGHTS = (0.0, USUAL_WEIGHT)
"""Weights that are tried at the end where a method clusters its own way, which may take as long as training."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgingImages:
    """The labeled images that training does not see the labels of, and what is clustered to judge it by them."""

    frozen: Tensor
    """(N, D) the embeddings of the encoder as it came."""
    labels: Ints
    """(N,)"""
    classes: Sequence[str]
    withheld: Withheld
    n_clusters: int
    """The same for all that is compared."""
    inference: InferenceSettings
    seed: int
    linkage_method: LinkageMethod = "ward"
    usual_shifts: int = 0
    """Those of the first answer."""
    first_cuts: Sequence[Ints] = ()
    """(N,) each: clusters of the frozen embeddings after 0, 1, 2 … shifts, where the first answer has them."""
    own_clusters: Callable[[Tensor, Ints], Ints] | None = None
    """Clusters of embeddings (M, D) by labels (M,) as the method makes them, where it does not shift."""

    def compare(
        self,
        trained: Tensor,
        frozen_alone: Sequence[TriedWeight],
        weights: Sequence[float],
        *,
        predicted: Ints | None = None,
        is_collapsed: bool = False,
    ) -> Choice:
        """Try weights below 1 of the frozen embeddings beside the trained (N, E).

        `frozen_alone` is what `judge_frozen` says. Of collapsed embeddings nothing is tried. Where a classifier has
        `predicted` clusters (N,), these stand for the trained encoder, and there is nothing between them and the
        frozen one.
        """
        judged = self.withheld.judged
        tried: list[TriedWeight] = []
        if predicted is not None and not is_collapsed:
            right = put_right(self.labels[judged], predicted[judged])
            tried = [TriedWeight(weight=0.0, n_shifts=0, right=right)]
        elif not is_collapsed:
            own = self.own_clusters
            tried = (
                self._try(trained, weights) if own is None else self._try_own(trained, weights, own)
            )
        hidden = tuple(self.classes[label] for label in self.withheld.hidden)
        units = drawn_units(judged, self.labels[judged], self.withheld.hidden, len(self.labels))
        return Choice(
            hidden=hidden, tried=[*tried, *frozen_alone], units=units, is_collapsed=is_collapsed
        )

    def judge_frozen(self) -> list[TriedWeight]:
        """What their labels say of the frozen embeddings alone; nothing where these are too much alike."""
        return self._try(self.frozen, (1.0,))

    def _try_own(
        self, trained: Tensor, weights: Sequence[float], cluster: Callable[[Tensor, Ints], Ints]
    ) -> list[TriedWeight]:
        """The same by the method's own clusters, which see every label but those of the images that judge."""
        judged = self.withheld.judged
        tried = []
        given = self.labels.copy()
        given[judged] = UNLABELED
        rows = sample_rows(len(self.labels), judged, self.n_clusters, self.seed)
        kept = torch.from_numpy(rows).to(trained.device)
        at = np.searchsorted(rows, judged)
        for weight in weights:
            with suppress(TooFewDistinct):
                clusters = cluster(blend(self.frozen[kept], trained[kept], weight), given[rows])
                tried.append(
                    TriedWeight(
                        weight=weight,
                        n_shifts=0,
                        right=put_right(self.labels[judged], clusters[at]),
                    )
                )
        return tried

    def _try(self, trained: Tensor, weights: Sequence[float]) -> list[TriedWeight]:
        return try_weights(
            self.frozen,
            trained,
            self.labels,
            self.withheld.judged,
            self.n_clusters,
            self.inference,
            seed=self.seed,
            weights=weights,
            linkage_method=self.linkage_method,
            usual_shifts=self.usual_shifts,
            first_cuts=self.first_cuts,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialJudge:
    """The judge of the trials of a run. The frozen encoder alone is the same in all of them, and judged once."""

    job: TrainingJob
    images: JudgingImages
    frozen: Sequence[TriedWeight]
    """What the labels say of the frozen encoder alone; nothing where its rows are too much alike."""
    seconds: float
    """What one weight takes."""

    @classmethod
    def of(cls, job: TrainingJob, withheld: Withheld) -> "TrialJudge":
        """Judge the frozen encoder, and see how long that takes."""
        began = time.perf_counter()
        collection = job.images.collection
        first = job.first.discovery
        images = JudgingImages(
            frozen=job.frozen.embeddings,
            labels=collection.labels,
            classes=collection.classes,
            withheld=withheld,
            n_clusters=first.n_clusters,
            inference=job.settings.of_method.inference,
            seed=job.settings.seed,
            linkage_method=first.linkage_method,
            usual_shifts=first.n_shifts,
            first_cuts=known_cuts(first),
            own_clusters=own_clusters(job),
        )
        frozen = images.judge_frozen()
        seconds = time.perf_counter() - began + (first.seconds if images.first_cuts else 0.0)
        if images.own_clusters is not None:
            began = time.perf_counter()
            images.compare(job.frozen.embeddings, frozen, FEW_WEIGHTS)
            seconds = time.perf_counter() - began
        return cls(job=job, images=images, frozen=frozen, seconds=seconds)

    @property
    def weights(self) -> tuple[float, ...]:
        """Those of the frozen encoder that are tried at the end."""
        usual = tuple(weight for weight in WEIGHTS if weight < 1)
        return usual if self.images.own_clusters is None else OWN_WEIGHTS

    @property
    def withheld(self) -> Withheld:
        """The labels that a trial does not see."""
        return self.images.withheld

    @property
    def is_satisfied(self) -> bool:
        """Whether the frozen encoder puts all judging images right, so that they cannot say that training helps."""
        return all(bool(one.right.all()) for one in self.frozen)

    def trial_s(self, n_epochs: int) -> float:
        """Seconds that judging one trial takes."""
        return self.seconds * (len(FEW_WEIGHTS) * len(moments(n_epochs)) + len(self.weights))

    def compare(
        self, embeddings: Tensor, predicted: Ints | None, weights: Sequence[float]
    ) -> Choice:
        """How much of the frozen encoder is to be kept beside these embeddings (N, E), or predicted clusters (N,)."""
        how: dict[str, Any] = {"predicted": predicted, "is_collapsed": is_collapsed(embeddings)}
        return self.images.compare(embeddings, self.frozen, weights, **how)

    def choose(self, embeddings: Tensor, predicted: Ints | None) -> Choice:
        """The same at the end of a trial, with all weights."""
        return self.compare(embeddings, predicted, self.weights)

    def watch(self, trial: Run) -> GoesOn:
        """End a trial that cannot help, that helped more before, or that can rise no further.

        What is found at each moment is kept in the trial's judged.json, so that a resumed trial is ended where an
        uninterrupted one is.
        """
        n_epochs = self.job.n_epochs

        def goes_on(epoch: int, embeddings: Tensor, predicted: Ints | None) -> bool:
            if epoch not in moments(n_epochs):
                return True
            compared = self.compare(embeddings, predicted, FEW_WEIGHTS)
            before = (
                [one for one in read_judged(trial) if one.epoch < epoch]
                if epoch > moments(n_epochs)[0]
                else []
            )
            now = JudgedEpoch(epoch=epoch, tried=compared.tried)
            write_judged(trial, [*before, now])
            if compared.is_hopeless:
                self.job.reporter.say(
                    f"training is ended after {epoch} of {n_epochs} epochs: {compared.in_words()}"
                )
                return False
            best = best_moment([*before, now], compared.units)
            if best is now:
                if not now.is_full or epoch < MIN_TRIAL_EPOCHS:
                    return True
                said = f"training is ended after {epoch} of {n_epochs} epochs"
                self.job.reporter.say(f"{said}: all images that judge it are right")
                return False
            self.job.reporter.say(
                f"training is ended after {epoch} of {n_epochs} epochs: it put more of the images right that judge it "
                f"after {best.epoch} ({_percent(best)}) than now ({_percent(now)})"
            )
            return False

        return goes_on

    def at_end(self, learned: Representation, trial: Run) -> dict[str, Any]:
        """What a `Tried` holds of a trial: the choice of its best epoch, which that is, and the choice of its last."""
        last = self.choose(learned.embeddings, learned.predicted)
        n_epochs = len(learned.metrics)
        if not learned.is_done:
            last = replace(last, is_stopped=True)
            return {"choice": last, "n_epochs": n_epochs, "at_end": last}
        choice, best_epoch = self.best(last, n_epochs, trial)
        return {"choice": choice, "n_epochs": best_epoch, "at_end": last}

    def best(self, last: Choice, n_epochs_done: int, trial: Run) -> tuple[Choice, int]:
        """The choice that is kept of a trial and after how many epochs: the last unless more were right before."""
        end = JudgedEpoch(epoch=n_epochs_done, tried=last.tried)
        before = [one for one in read_judged(trial) if one.epoch < n_epochs_done]
        best = best_moment([*before, end], last.units)
        return (
            (last, n_epochs_done) if best is end else (replace(last, tried=best.tried), best.epoch)
        )


def known_cuts(first: Discovery) -> tuple[Ints, ...]:
    """The clusters of the first answer after each shift; none where a choice looks at fewer images, or at another K."""
    is_whole = looks_at_all(len(first.clusters), first.n_clusters)
    return (
        first.cuts
        if is_whole and all(int(cut.max()) + 1 == first.n_clusters for cut in first.cuts)
        else ()
    )


def own_clusters(job: TrainingJob) -> Callable[[Tensor, Ints], Ints] | None:
    """How the method clusters embeddings with the first answer's K; None where it shifts, or predicts."""
    method = get_method(job.settings.method)
    settings = job.settings.of_method
    n_clusters = job.first.discovery.n_clusters
    if method.shifts or method.needs_n_clusters:
        return None

    def cluster(embeddings: Tensor, labels: Ints) -> Ints:
        learned = replace(job.frozen, embeddings=embeddings)
        return method.cluster(
            learned, labels, settings, n_clusters=n_clusters, device=embeddings.device
        ).clusters

    return cluster


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgedEpoch:
    """What the judging images say of a trial after some epochs."""

    epoch: int
    tried: Sequence[TriedWeight]
    """As that of `Choice`."""

    @property
    def right(self) -> Bools | None:
        """(J,) which of them the best weight with training puts right; None where there is none."""
        with_training = [one.right for one in self.tried if one.weight < 1]
        return max(with_training, key=lambda right: int(right.sum())) if with_training else None

    @property
    def is_full(self) -> bool:
        """Whether it puts all of them right."""
        return self.right is not None and bool(self.right.all())


def moments(n_epochs: int) -> list[int]:
    """The epochs, counted from 1, after which a trial is judged before its end: none of one that is that short."""
    if n_epochs < MIN_EPOCHS:
        return []
    return sorted({max(1, round(share * n_epochs)) for share in MOMENTS} - {n_epochs})


def best_moment(judged: Sequence[JudgedEpoch], units: Ints | None = None) -> JudgedEpoch:
    """The last moment, unless an earlier one is better by more than two standard errors: then the best of all.

    As many as make a trial hopeless: an earlier moment is the best of several, and by chance often a little better.
    `units` (J,) are those of `Choice`.
    """
    last = judged[-1]
    able = [one for one in judged if one.right is not None]
    if last.right is None or not able:
        return last
    best = max(able, key=lambda one: int(one.right.sum()))  # type: ignore[union-attr]
    assert best.right is not None
    return best if is_worse(last.right, best.right, n_errors=2, units=units) else last


def write_judged(trial: Run, judged: Sequence[JudgedEpoch]) -> None:
    """Keep what was found at each moment."""
    trial.write_json(
        "judged", {"moments": [{"epoch": one.epoch, "tried": _plain(one.tried)} for one in judged]}
    )


def read_judged(trial: Run) -> list[JudgedEpoch]:
    """What was found at each moment so far."""
    if not trial.has("judged.json"):
        return []
    try:
        return [
            JudgedEpoch(
                epoch=int(one["epoch"]), tried=[_tried_weight(plain) for plain in one["tried"]]
            )
            for one in trial.json("judged")["moments"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(
            trial.path / "judged.json", "it does not hold what the judging images say"
        ) from error


def _plain(tried: Sequence[TriedWeight]) -> list[dict[str, Any]]:
    return [
        {"weight": one.weight, "n_shifts": one.n_shifts, "right": one.right.astype(int).tolist()}
        for one in tried
    ]


def _tried_weight(plain: dict[str, Any]) -> TriedWeight:
    right = np.array(plain["right"], dtype=bool)
    return TriedWeight(weight=float(plain["weight"]), n_shifts=int(plain["n_shifts"]), right=right)


def _percent(judged: JudgedEpoch) -> str:
    assert judged.right is not None
    return f"{100 * judged.right.mean():.1f} %"
