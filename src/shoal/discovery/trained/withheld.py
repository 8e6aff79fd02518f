"""Which labels are kept from training to choose the snapshot and more, and what is left for it to learn from.

N images.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.data.collection import Collection
from shoal.data.splits import hold_out_validation
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import Readable
from shoal.discovery.reporter import Reporter
from shoal.methods.task import Task
from shoal.words import count, first_few, plural

MAX_NAMED = 5
"""How many categories a note lists."""

MIN_CATEGORIES = 5
"""Known categories from which on some are hidden: with fewer, too little would be left to learn from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Withheld:
    """The labels that training sees, and those it does not."""

    labels: Ints
    """(N,) for training; validation images keep theirs, which the loss never sees."""
    validation: Ints | None = None
    """Rows whose labels the loss never sees; None where no image is labeled."""
    hidden: tuple[int, ...] = ()
    """Known categories whose labels the loss never sees, as if they were novel."""
    judged: Ints
    """Rows whose label the loss never sees: labeled validation images, and those of hidden categories."""
    too_small: tuple[int, ...] = ()
    """Categories with a single labeled image, which validation cannot see."""
    are_too_few: bool = False
    """Whether some were to be hidden, but too few known categories have two labeled images."""
    has_trial: bool = False
    """Whether a trial tells if training helps. Learned attention fits one embedding alone, and cannot be blended."""


def set_aside(
    collection: Collection, settings: DiscoverySettings, reporter: Reporter
) -> tuple[Withheld, DiscoverySettings]:
    """What is withheld from training, which is said, and the settings with batches that fit the rest.

    The same in every process.
    """
    withheld = withhold(collection, settings)
    for line in describe_withheld(collection, withheld):
        reporter.say(line)
    return withheld, fit_batch(settings, len(withheld.labels), reporter)


def withhold(collection: Collection, settings: DiscoverySettings) -> Withheld:
    """Draw validation images and hidden categories with the seed; where no image is labeled there is nothing to draw.

    Categories are hidden where at least five have two labeled images or more.
    """
    labels = collection.labels
    if not collection.n_labeled:
        return Withheld(labels=labels, judged=np.empty(0, dtype=np.int64))
    rng = np.random.default_rng(settings.seed)
    split = hold_out_validation(labels, share=settings.validation_share, rng=rng)
    able = np.flatnonzero(collection.class_sizes > 1)
    hidden = _draw_hidden(able, settings.hidden_share, rng)
    is_validation = np.isin(np.arange(len(labels)), split.validation)
    is_hidden = np.isin(labels, hidden)
    return Withheld(
        labels=np.where(is_hidden & ~is_validation, UNLABELED, labels),
        validation=split.validation,
        hidden=tuple(hidden.tolist()),
        judged=np.flatnonzero(collection.is_labeled & (is_validation | is_hidden)),
        too_small=split.too_small,
        are_too_few=settings.hidden_share > 0 and len(able) < MIN_CATEGORIES,
        has_trial=len(hidden) > 0 and settings.shift.aggregation != "attention",
    )


def _draw_hidden(able: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0 or len(able) < MIN_CATEGORIES:
        return able[:0]
    return np.sort(rng.choice(able, max(1, round(share * len(able))), replace=False))


def training_tasks(
    images: Readable, withheld: Withheld, n_clusters: int | None
) -> tuple[Task, Task | None]:
    """What training learns from, and, where that is a trial, what the one after it does, with all labels.

    Both look at one pool of views.
    """
    labels = images.collection.labels
    first = Task(
        pixels=images.pixels,
        labels=withheld.labels,
        validation=withheld.validation,
        n_clusters=n_clusters,
    )
    if not withheld.has_trial:
        return first, None
    last = replace(
        first, labels=labels, validation=None, pool_labels=(first.training_data.training_labels,)
    )
    return replace(first, pool_labels=(labels,)), last


def describe_withheld(collection: Collection, withheld: Withheld) -> list[str]:
    """Say which labels training does not see, and which categories validation cannot see."""
    if withheld.validation is None:
        return []
    n_labeled = int((collection.labels[withheld.validation] != UNLABELED).sum())
    images = count(len(withheld.validation), "image")
    labels = count(n_labeled, "label")
    lines = [f"{images} set aside for validation, {labels} kept from training"]
    if withheld.hidden:
        n = len(withheld.hidden)
        names = _listed(collection, withheld.hidden)
        lines.append(
            f"training is not shown the labels of {count(n, 'known category')} ({names}), "
            "to see whether it helps with categories that it has no labels of"
        )
    if withheld.are_too_few:
        lines.append(
            f"note: with fewer than {MIN_CATEGORIES} known categories of two labeled images or more none can be kept "
            "from training, so nothing tells whether it helps with novel ones; compare with the first answer, which is "
            "kept"
        )
    if withheld.too_small:
        n_small = len(withheld.too_small)
        names = _listed(collection, withheld.too_small)
        lines.append(
            f"note: {count(n_small, 'category')} {plural(n_small, 'has')} a single labeled image "
            f"({names}), which validation cannot judge when the snapshot is chosen; label one more of each"
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
        f"note: batches of {n_training:,} images instead of {wanted:,}, because there are no more to train on"
    )
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, method_settings=smaller)
