"""The labels that are held out from training, to evaluate it. N images."""

from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.data.collection import Collection
from shoal.data.splits import hold_out_validation
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import NOTE, Reporter
from shoal.words import count, first_few

MAX_NAMED = 5
"""Maximum number of categories that a message names."""

MIN_CATEGORIES = 5
"""Fewest known categories for some to be hidden, so that enough are left to learn from."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A split of the labels into those that training sees and those that evaluate it."""

    labels: Ints
    """(N,) for training; they include those of validation images, which the loss does not see."""
    validation: Ints | None = None
    """Rows of the validation images; None if no image is labeled."""
    hidden: tuple[int, ...] = ()
    """Known categories whose labels are all held out, as if they were novel."""
    rows: Ints
    """Rows with held-out labels: labeled validation images, and images of hidden categories."""


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
    lines = [f"{images}, {n_labeled:,} of them labeled"]
    if n_labeled:
        labels = "this label is" if n_labeled == 1 else "these labels are"
        lines[0] += f"; {labels} held out from training"
    if held_out.hidden:
        names = first_few([collection.classes[label] for label in held_out.hidden], MAX_NAMED)
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
        f"{NOTE}using a batch size of {n_training:,}, the number of images, instead of "
        f"{batch_size:,}"
    )
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, method_settings=smaller)
