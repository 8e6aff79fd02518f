"""Which labels are held out from training to evaluate it, and what is left for it to learn from.

N images.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.data.collection import Collection
from shoal.data.splits import hold_out_validation
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import Readable
from shoal.discovery.reporter import NOTE, Reporter
from shoal.methods.task import Task
from shoal.words import count, first_few, plural

MAX_NAMED = 5
"""How many categories a note lists."""

MIN_CATEGORIES = 5
"""Known categories from which on some are hidden: with fewer, too little would be left to learn from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOut:
    """The labels that training sees, and those it does not."""

    labels: Ints
    """(N,) for training; validation images keep theirs, which the loss never sees."""
    validation: Ints | None = None
    """Rows whose labels the loss never sees; None where no image is labeled."""
    hidden: tuple[int, ...] = ()
    """Known categories whose labels the loss never sees, as if they were novel."""
    rows: Ints
    """Rows whose label the loss never sees: labeled validation images, and those of hidden categories."""
    too_small: tuple[int, ...] = ()
    """Categories with a single labeled image, which validation cannot see."""
    has_trial: bool = False
    """Whether training can be compared with the frozen result: where a category is hidden. Not with learned attention,
    which fits one embedding alone and cannot be blended."""


def set_aside(
    collection: Collection, settings: DiscoverySettings, reporter: Reporter
) -> tuple[HeldOut, DiscoverySettings]:
    """What is held out from training, which is said, and the settings with batches that fit the rest.

    The same in every process.
    """
    held_out = hold_out(collection, settings)
    for line in describe_held_out(collection, held_out):
        reporter.say(line)
    return held_out, fit_batch(settings, len(held_out.labels), reporter)


def hold_out(collection: Collection, settings: DiscoverySettings) -> HeldOut:
    """Draw validation images and hidden categories with the seed; where no image is labeled there is nothing to draw.

    Categories are hidden where at least five have two labeled images or more.
    """
    labels = collection.labels
    if not collection.n_labeled:
        return HeldOut(labels=labels, rows=np.empty(0, dtype=np.int64))
    rng = np.random.default_rng(settings.seed)
    split = hold_out_validation(labels, share=settings.validation_share, rng=rng)
    able = np.flatnonzero(collection.class_sizes > 1)
    hidden = _draw_hidden(able, settings.hidden_share, rng)
    is_validation = np.isin(np.arange(len(labels)), split.validation)
    is_hidden = np.isin(labels, hidden)
    return HeldOut(
        labels=np.where(is_hidden & ~is_validation, UNLABELED, labels),
        validation=split.validation,
        hidden=tuple(hidden.tolist()),
        rows=np.flatnonzero(collection.is_labeled & (is_validation | is_hidden)),
        too_small=split.too_small,
        has_trial=len(hidden) > 0 and settings.shift.aggregation != "attention",
    )


def _draw_hidden(able: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0 or len(able) < MIN_CATEGORIES:
        return able[:0]
    return np.sort(rng.choice(able, max(1, round(share * len(able))), replace=False))


def training_tasks(
    images: Readable, held_out: HeldOut, n_clusters: int | None
) -> tuple[Task, Task | None]:
    """What training learns from, and, where that is a trial, what the one after it does, with all labels.

    Both look at one pool of views.
    """
    labels = images.collection.labels
    first = Task(
        pixels=images.pixels,
        labels=held_out.labels,
        validation=held_out.validation,
        n_clusters=n_clusters,
    )
    if not held_out.has_trial:
        return first, None
    last = replace(first, labels=labels, validation=None, pool_labels=(first.training_labels,))
    return replace(first, pool_labels=(labels,)), last


def describe_held_out(collection: Collection, held_out: HeldOut) -> list[str]:
    """Say which labels training does not see, and which categories validation cannot see."""
    if held_out.validation is None:
        return []
    n_labeled = int((collection.labels[held_out.validation] != UNLABELED).sum())
    images = count(len(held_out.validation), "image")
    lines = [
        f"{images} set aside for validation, {count(n_labeled, 'label')} held out from training"
    ]
    if held_out.hidden:
        n = len(held_out.hidden)
        names = _listed(collection, held_out.hidden)
        lines.append(
            f"the labels of {count(n, 'known category')} ({names}) are held out too, "
            "to evaluate training on categories that it has no labels of"
        )
    if held_out.too_small:
        n_small = len(held_out.too_small)
        names = _listed(collection, held_out.too_small)
        lines.append(
            f"{NOTE}{count(n_small, 'category')} {plural(n_small, 'has')} a single labeled image "
            f"({names}), so that none can be held out; label one more of each"
        )
    return lines


def _listed(collection: Collection, categories: tuple[int, ...]) -> str:
    return first_few([collection.classes[label] for label in categories], MAX_NAMED)


def fit_batch(
    settings: DiscoverySettings, n_training: int, reporter: Reporter
) -> DiscoverySettings:
    """Make the batch smaller where the collection is smaller than one."""
    chosen = settings.of_method
    wanted = chosen.training.batch_size
    if wanted <= n_training:
        return settings
    reporter.say(
        f"{NOTE}batches of {n_training:,} images instead of {wanted:,}, "
        "because there are no more to train on"
    )
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, method_settings=smaller)
