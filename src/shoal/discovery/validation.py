"""What a collection must hold, and which of its images are set aside to choose K and the snapshot."""

import numpy as np

from shoal.arrays import UNLABELED
from shoal.clustering.inference import check_n_clusters
from shoal.data.collection import Collection, check_for_discovery
from shoal.data.splits import HoldOut, hold_out_validation
from shoal.discovery.settings import DiscoverySettings
from shoal.errors import DataError

MAX_NAMED = 5
"""How many categories a note lists."""


def check_collection(collection: Collection, settings: DiscoverySettings) -> None:
    """Refuse at the door what could only fail later, after decoding and embedding."""
    if settings.n_clusters is None:
        check_for_discovery(collection)
    else:
        check_n_clusters(settings.n_clusters, collection.labels, len(collection))
    split = hold_out(collection, settings) if settings.train else None
    n_used, n_neighbors = len(collection) if split is None else len(split.training), settings.shift.n_neighbors
    if n_used <= n_neighbors:
        besides = "" if split is None else f" besides the {len(split.validation)} set aside for validation"
        raise DataError(
            f"{collection.count()}: a mean over {n_neighbors} neighbors needs more than {n_neighbors} images{besides}, "
            f"found {n_used}; add images"
        )


def hold_out(collection: Collection, settings: DiscoverySettings) -> HoldOut | None:
    """Draw the validation images with the seed; None where no image is labeled."""
    if not collection.n_labeled:
        return None
    rng = np.random.default_rng(settings.seed)
    return hold_out_validation(collection.labels, share=settings.validation_share, rng=rng)


def describe_hold_out(collection: Collection, split: HoldOut) -> list[str]:
    """Say how many images were set aside, and which categories validation cannot see."""
    n_labeled, n_small = int((collection.labels[split.validation] != UNLABELED).sum()), len(split.too_small)
    lines = [f"{len(split.validation):,} images set aside for validation, {n_labeled:,} of them labeled"]
    if split.too_small:
        names = ", ".join(collection.classes[label] for label in split.too_small[:MAX_NAMED])
        dots = ", …" if n_small > MAX_NAMED else ""
        lines.append(
            f"note: {n_small} {'category has' if n_small == 1 else 'categories have'} a single labeled image "
            f"({names}{dots}), which validation cannot judge when K and the snapshot are chosen; label one more of each"
        )
    return lines
