"""Evaluation on held-out labels: of the frozen encoder, of a training in progress, and in the end.

N images, E columns of embeddings, J held-out images.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.blend import (
    USUAL_WEIGHT,
    WEIGHTS,
    TriedWeight,
    blend,
    looks_at_all,
    sample_rows,
    try_weights,
)
from shoal.clustering.matching import put_right
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import Listener
from shoal.discovery.trained.choice import Choice, can_be_significant, is_significant
from shoal.discovery.trained.held_out import HeldOut
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
"""Weights of the frozen encoder that are tried then. One says whether to go on, and each costs up
to seven trees."""

TRAINED_WEIGHTS = tuple(weight for weight in WEIGHTS if weight < 1)
"""Weights that are tried in the end."""

OWN_WEIGHTS = (0.0, USUAL_WEIGHT)
"""The same where a method clusters its own way, which may take as long as training."""

Rights = Mapping[int, Bools | None]
"""By epoch: (J,) which held-out images the best weight with training puts right; None where none
could be tried."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """The held-out images, and what is clustered to evaluate a result by their labels."""

    frozen: Representation
    labels: Ints
    """(N,)"""
    classes: Sequence[str]
    held_out: HeldOut
    first: Discovery
    """The frozen result, whose K and linkage are those of all that is compared."""
    settings: DiscoverySettings

    @cached_property
    def of_frozen(self) -> Sequence[TriedWeight]:
        """What the labels say of the frozen embeddings alone; nothing where these are too much
        alike."""
        return self._try(self.frozen.embeddings, (1.0,))

    @property
    def can_be_significant(self) -> bool:
        """Whether any result of training could be significantly better than the frozen one."""
        return all(can_be_significant(one.right) for one in self.of_frozen)

    def choose(self, learned: Representation) -> Choice:
        """How much of the frozen encoder is to be kept beside what was learned."""
        weights = OWN_WEIGHTS if self._clusters_own else TRAINED_WEIGHTS
        return self.compare(learned.embeddings, learned.predicted, weights)

    def compare(self, trained: Tensor, predicted: Ints | None, weights: Sequence[float]) -> Choice:
        """Try weights below 1 of the frozen embeddings beside the trained (N, E).

        Of collapsed embeddings nothing is tried. Where a classifier has `predicted` clusters
        (N,), these stand for the trained encoder, and there is nothing between them and the
        frozen one.
        """
        has_collapsed = is_collapsed(trained)
        tried: Sequence[TriedWeight]
        if has_collapsed:
            tried = []
        elif predicted is not None:
            rows = self.held_out.rows
            right = put_right(self.labels[rows], predicted[rows])
            tried = [TriedWeight(weight=0.0, n_shifts=0, right=right)]
        elif self._clusters_own:
            tried = self._try_own(trained, weights)
        else:
            tried = self._try(trained, weights)
        return Choice(
            hidden=tuple(self.classes[label] for label in self.held_out.hidden),
            tried=[*tried, *self.of_frozen],
            is_collapsed=has_collapsed,
        )

    @property
    def _clusters_own(self) -> bool:
        """Whether the method clusters its own way: it neither shifts nor predicts."""
        method = get_method(self.settings.method)
        return not method.shifts and not method.needs_n_clusters

    def _try_own(self, trained: Tensor, weights: Sequence[float]) -> list[TriedWeight]:
        """Try weights by the method's own clusters, which see every label but the held-out ones."""
        held_out = self.held_out.rows
        given = self.labels.copy()
        given[held_out] = UNLABELED
        rows = sample_rows(len(self.labels), held_out, self.first.n_clusters, self.settings.seed)
        kept = torch.from_numpy(rows).to(trained.device)
        at = np.searchsorted(rows, held_out)
        tried = []
        for weight in weights:
            both = blend(self.frozen.embeddings[kept], trained[kept], weight)
            with suppress(TooFewDistinct):
                clusters = self._cluster(both, given[rows])
                right = put_right(self.labels[held_out], clusters[at])
                tried.append(TriedWeight(weight=weight, n_shifts=0, right=right))
        return tried

    def _cluster(self, embeddings: Tensor, labels: Ints) -> Ints:
        discovery = get_method(self.settings.method).cluster(
            replace(self.frozen, embeddings=embeddings),
            labels,
            self.settings.of_method,
            n_clusters=self.first.n_clusters,
            device=embeddings.device,
        )
        return discovery.clusters

    def _try(self, trained: Tensor, weights: Sequence[float]) -> list[TriedWeight]:
        return try_weights(
            self.frozen.embeddings,
            trained,
            self.labels,
            self.held_out.rows,
            self.first.n_clusters,
            self.settings.of_method.inference,
            seed=self.settings.seed,
            weights=weights,
            linkage_method=self.first.linkage_method,
            usual_shifts=self.first.n_shifts,
            first_cuts=known_cuts(self.first),
        )


def known_cuts(first: Discovery) -> tuple[Ints, ...]:
    """The clusters of the first result after each shift; none where fewer images, or another K, are
    looked at."""
    is_whole = looks_at_all(len(first.clusters), first.n_clusters)
    if is_whole and all(int(cut.max()) + 1 == first.n_clusters for cut in first.cuts):
        return first.cuts
    return ()


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialStopping:
    """Ends a trial early that cannot help, that helped more before, or that can rise no further.

    What is found is kept in the trial's judged.json, so that a resumed trial ends where an
    uninterrupted one does.
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
        now = _best_right(choice)
        before = read_rights(self.trial)
        rights = {one: right for one, right in before.items() if one < epoch} | {epoch: now}
        if epoch in self.epochs:  # else the user has stopped it here, and a resumed trial goes on
            write_rights(self.trial, rights)
        best = best_epoch(rights)
        reason = ""
        if choice.is_hopeless:
            reason = "held-out accuracy is significantly below that of the frozen result"
        elif best != epoch:
            fall = f"from {_accuracy(rights[best])} to {_accuracy(now)}"
            reason = f"held-out accuracy has fallen significantly, {fall}"
        elif now is not None and now.all():
            reason = "all held-out labels are right"
        if reason and epoch < self.n_epochs:
            self.say(f"training is ended after {epoch} of {self.n_epochs} epochs: {reason}")
        return Verdict(is_best=best == epoch, is_over=bool(reason))


def _best_right(choice: Choice) -> Bools | None:
    """(J,) of the best weight with training."""
    rights = [one.right for one in choice.tried if one.weight < 1]
    return max(rights, key=lambda right: int(right.sum()), default=None)


def _accuracy(right: Bools | None) -> str:
    return "nothing" if right is None else percent(float(right.mean()))


def best_epoch(rights: Rights) -> int:
    """The last epoch, unless an earlier one is significantly better: then the best of all.

    An earlier one is the best of several, and by chance often a little better.
    """
    last = max(rights)
    n_right = {epoch: int(right.sum()) for epoch, right in rights.items() if right is not None}
    if last not in n_right:
        return last
    best = max(n_right, key=lambda epoch: n_right[epoch])
    now = rights[last]
    then = rights[best]
    assert now is not None
    assert then is not None
    return best if is_significant(then, now) else last


def write_rights(trial: Run, rights: Rights) -> None:
    """Keep what was found after each epoch."""
    plain = {
        str(epoch): None if right is None else right.astype(int).tolist()
        for epoch, right in rights.items()
    }
    trial.write_json("judged", plain)


def read_rights(trial: Run) -> dict[int, Bools | None]:
    """What was found after each epoch so far."""
    if not trial.has("judged.json"):
        return {}
    rights: dict[int, Bools | None] = {}
    try:
        for epoch, right in trial.json("judged").items():
            rights[int(epoch)] = None if right is None else np.array(right, dtype=bool)
    except (TypeError, ValueError) as error:
        file = trial.path / "judged.json"
        raise damaged(file, "it does not hold what held-out labels say") from error
    return rights
