"""Did training help, and how much of the frozen encoder is kept? Decided by labels that training never saw.

Labels of known categories that training does see say little: they are found better and better while novel categories
fall apart. So whole known categories are hidden from a first training and stand in for novel ones. Images are then
clustered by the frozen encoder, by the trained one and by both at once, and the hidden labels say which is best.
Nothing here sees a label that the user does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.arrays import Ints
from shoal.clustering.blend import TriedWeight, choose_weight
from shoal.clustering.matching import is_worse
from shoal.discovery.trained.training_job import TrainingJob
from shoal.methods.clusters import Representation
from shoal.training.cost import Cost
from shoal.words import count, part_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """How much of the frozen encoder is kept, and why; all of it where training did not help."""

    hidden: tuple[str, ...]
    """Known categories that stood in for novel ones."""
    tried: Sequence[TriedWeight]
    """What the judging images say of each weight of the frozen encoder; the last is 1, that encoder alone."""
    units: Ints | None = None
    """(J,) which judging images stand for one draw: those of a hidden category do. None: each for itself."""
    is_collapsed: bool = False
    """Whether training has brought all embeddings to nearly one direction: then so few images say little for it."""
    is_stopped: bool = False
    """Whether a user has stopped training: what was to come speaks no longer for it, so it must put more right."""

    @property
    def chosen(self) -> TriedWeight:
        """The weight that is kept."""
        best = choose_weight(self.tried)
        frozen = self.tried[-1]
        is_refused = self.is_collapsed or (
            self.is_stopped and best.right.sum() <= frozen.right.sum()
        )
        return frozen if is_refused else best

    @property
    def with_training(self) -> TriedWeight:
        """The weight that is kept or, where that is the frozen encoder alone, the best that was not."""
        others = [one for one in self.tried if one.weight < 1]
        return self.chosen if self.keeps_training or not others else choose_weight(others)

    @property
    def keeps_training(self) -> bool:
        """Whether the trained answer stands."""
        return self.chosen.weight < 1

    @property
    def is_hopeless(self) -> bool:
        """Whether every weight with training is worse than the frozen encoder by more than two standard errors."""
        frozen = self.tried[-1].right
        others = [one.right for one in self.tried if one.weight < 1]
        return all(is_worse(right, frozen, n_errors=2, units=self.units) for right in others)

    @property
    def may_be_chance(self) -> bool:
        """Whether what stands is better by no more than two standard errors, if it is better at all."""
        other = self.with_training if not self.keeps_training else self.tried[-1]
        return not is_worse(other.right, self.chosen.right, n_errors=2, units=self.units)

    @property
    def n_images(self) -> int:
        """Labeled images whose label training never saw."""
        return len(self.tried[-1].right)

    @property
    def frozen(self) -> float:
        """Share of them put right by the frozen encoder alone."""
        return float(self.tried[-1].right.mean())

    @property
    def trained(self) -> float:
        """Share put right with training."""
        return float(self.with_training.right.mean())

    @property
    def kept(self) -> str:
        """The answer that stands."""
        return "trained" if self.keeps_training else "frozen"

    def in_words(self) -> str:
        """The comparison, on how many images it rests, and what follows from it."""
        without, with_it = (part_of(share, self.n_images) for share in (self.frozen, self.trained))
        weight = self.chosen.weight
        end = (
            "the trained answer stands"
            if self.keeps_training
            else "training did not help, the first answer stands"
        )
        if self.is_collapsed:
            end = "training has collapsed, the first answer stands"
        elif self.may_be_chance:
            kept = "trained" if self.keeps_training else "first"
            end = f"{'no difference' if without == with_it else 'that may be chance'}, the {kept} answer stands"
        if 0 < weight < 1:
            end += f", with the encoder as it came weighing {100 * weight:.0f} %"
        shares = f"{without} without training, {with_it} with it"
        return f"of {count(self.n_images, 'labeled image')} kept from training, put right: {shares}; {end}"

    def to_dict(self) -> dict[str, Any]:
        """The record of it, for choice.json."""
        tried = [
            {"weight": one.weight, "n_shifts": one.n_shifts, "accuracy": float(one.right.mean())}
            for one in self.tried
        ]
        return {
            "kept": self.kept,
            "frozen_weight": self.chosen.weight,
            "n_shifts": self.chosen.n_shifts,
            "accuracy": {"frozen": self.frozen, "trained": self.trained},
            "n_images": self.n_images,
            "tried": tried,
            "hidden": list(self.hidden),
            "is_collapsed": self.is_collapsed,
            "may_be_chance": self.may_be_chance,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Tried:
    """A trial, and what the labels kept from it say."""

    job: TrainingJob
    """With the depth and the temperature that were tried."""
    folder: Path
    cost: Cost
    learned: Representation
    choice: Choice
    n_epochs: int
    """After how many epochs that was said."""
    at_end: Choice
    """What they say of its last epoch, whose weights are there."""

    @property
    def accuracy(self) -> float:
        """Share of the judging images that are right with the weight that is kept."""
        return float(self.choice.chosen.right.mean())

    @property
    def is_full(self) -> bool:
        """Whether all of them are, so that no other trial can be better."""
        return bool(self.choice.chosen.right.all())

    def in_words(self) -> str:
        """What was tried: '5 blocks at temperature 0.2'."""
        settings = self.job.settings
        blocks = settings.of_method.n_tail_blocks
        temperature = settings.temperature
        depth = "the encoder's own blocks" if blocks is None else count(blocks, "block")
        return depth if temperature is None else f"{depth} at temperature {temperature:g}"

    def to_dict(self) -> dict[str, Any]:
        """For choice.json."""
        settings = self.job.settings
        what = {
            "n_tail_blocks": settings.of_method.n_tail_blocks,
            "temperature": settings.temperature,
        }
        return what | {"accuracy": self.accuracy}

    def ended(self, *, is_stopped: bool) -> "Tried":
        """The same with what is said of its last epoch, which choice.json then holds too.

        `is_stopped`: the user has stopped it, or the training that was to go on from it.
        """
        if self.choice is self.at_end and self.choice.is_stopped == is_stopped:
            return self
        choice = replace(self.at_end, is_stopped=is_stopped)
        ended = replace(self, choice=choice, n_epochs=len(self.learned.metrics))
        run = self.job.run
        run.write_json(
            "choice", run.json("choice") | ended.choice.to_dict() | {"epochs": ended.n_epochs}
        )
        return ended


def best_of(tried: Sequence[Tried]) -> Tried:
    """The trial with most of the judging images right, the first of equals."""
    return max(tried, key=lambda one: int(one.choice.chosen.right.sum()))


def keep_best(job: TrainingJob, tried: Sequence[Tried]) -> Tried:
    """The best trial; it is written down and said what was tried, and what the others' trunk computed is deleted."""
    best = best_of(tried)
    for other in tried:
        if not other.learned.shares_trunk(best.learned):
            other.learned.free_trunk()
    about = {"epochs": best.n_epochs, "trials": [one.to_dict() for one in tried]}
    job.run.write_json("choice", best.choice.to_dict() | about)
    if len(tried) > 1:
        job.reporter.say(describe_tried(tried, best))
    said = best.ended(is_stopped=True) if job.is_asked() else best
    job.reporter.say(said.choice.in_words())
    return best


def describe_tried(tried: Sequence[Tried], best: Tried) -> str:
    """Say what was tried, how much of the judging images it put right, and what is kept."""
    shown = ", ".join(
        f"{one.in_words()} ({part_of(one.accuracy, one.choice.n_images)} right)" for one in tried
    )
    return f"tried to train {shown}; kept: {best.in_words()}"
