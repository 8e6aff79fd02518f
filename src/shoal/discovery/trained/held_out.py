"""Which labels are held out from training to evaluate it.

N images.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.data.collection import Collection
from shoal.data.splits import hold_out_validation
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import NOTE, Reporter
from shoal.words import count, first_few, plural

MAX_NAMED = 5
"""How many categories a note lists."""

MIN_CATEGORIES = 5
"""Known categories from which on some are hidden: with fewer, too little would be left to learn
from."""


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
    """Rows whose label the loss never sees: labeled validation images, and those of hidden
    categories."""
    too_small: tuple[int, ...] = ()
    """Categories with a single labeled image, which validation cannot see."""


def hold_out(collection: Collection, settings: DiscoverySettings) -> HeldOut:
    """Draw validation images and hidden categories with the seed; where no image is labeled there
    is nothing to draw.

    Categories are hidden where at least five have two labeled images or more.
    """
    labels = collection.labels
    if not collection.n_labeled:
        return HeldOut(labels=labels, rows=np.empty(0, dtype=np.int64))
    rng = np.random.default_rng(settings.seed)
    split = hold_out_validation(labels, share=settings.validation_share, rng=rng)
    able = np.flatnonzero(collection.class_sizes > 1)
    hidden = able[:0]
    if settings.hidden_share > 0 and len(able) >= MIN_CATEGORIES:
        n_hidden = max(1, round(settings.hidden_share * len(able)))
        hidden = np.sort(rng.choice(able, n_hidden, replace=False))
    is_validation = np.isin(np.arange(len(labels)), split.validation)
    is_hidden = np.isin(labels, hidden)
    return HeldOut(
        labels=np.where(is_hidden & ~is_validation, UNLABELED, labels),
        validation=split.validation,
        hidden=tuple(hidden.tolist()),
        rows=np.flatnonzero(collection.is_labeled & (is_validation | is_hidden)),
        too_small=split.too_small,
    )


def describe_held_out(collection: Collection, held_out: HeldOut) -> list[str]:
    """Say which labels training does not see, and which categories validation cannot see."""
    if held_out.validation is None:
        return []
    n_labeled = int((collection.labels[held_out.validation] != UNLABELED).sum())
    images = count(len(held_out.validation), "image")
    lines = [
        f"{images} set aside for validation, {count(n_labeled, 'label')} held out from training"
    ]
    n_hidden = len(held_out.hidden)
    n_small = len(held_out.too_small)
    if n_hidden:
        names = first_few([collection.classes[label] for label in held_out.hidden], MAX_NAMED)
        lines.append(
            f"the labels of {count(n_hidden, 'known category')} ({names}) are held out too, "
            "to evaluate training on categories that it has no labels of"
        )
    if n_small:
        names = first_few([collection.classes[label] for label in held_out.too_small], MAX_NAMED)
        lines.append(
            f"{NOTE}{count(n_small, 'category')} {plural(n_small, 'has')} a single labeled image "
            f"({names}), so that none can be held out; label one more of each"
        )
    return lines


def fit_batch(
    settings: DiscoverySettings, n_training: int, reporter: Reporter
) -> DiscoverySettings:
    """Make the batch smaller where the collection is smaller than one."""
    chosen = settings.trained
    wanted = chosen.training.batch_size
    if wanted <= n_training:
        return settings
    reporter.say(
        f"{NOTE}batches of {n_training:,} images instead of {wanted:,}, "
        "because there are no more to train on"
    )
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, method_settings=smaller)
