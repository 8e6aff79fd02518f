"""What a collection must hold, and its images that can be read: decoded once, and the others listed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.clustering.n_clusters_range import check_estimable, check_n_clusters
from shoal.data.collection import Collection, check_for_discovery
from shoal.data.pixels import Pixels, check_headers, load_pixels
from shoal.discovery.reporter import Reporter
from shoal.discovery.settings import DiscoverySettings
from shoal.errors import DataError, ShoalError
from shoal.progress import Outlook

Check = Callable[[Collection, DiscoverySettings], None]
"""Refuses a collection that is not enough."""


@dataclass(frozen=True, eq=False)
class Readable:
    """The images that could be decoded; rows of `pixels` are those of `collection`."""

    collection: Collection
    pixels: Pixels


def check_collection(collection: Collection, settings: DiscoverySettings) -> None:
    """Refuse now what could only fail later, after decoding and embedding."""
    if settings.n_clusters is None:
        check_for_discovery(collection)
        inference = settings.of_method.inference
        check_estimable(inference.min_clusters, inference.max_clusters, collection.labels)
    else:
        check_n_clusters(settings.n_clusters, collection.labels, len(collection))
    n_neighbors = settings.shift.n_neighbors
    if len(collection) <= n_neighbors:
        raise DataError(
            f"{collection.count()}: a mean over {n_neighbors} neighbors needs more than {n_neighbors} images, "
            f"found {len(collection)}; add images, or lower inference.shift.n_neighbors"
        )


def drop_unreadable(collection: Collection, pixel_size: int) -> tuple[Collection, int]:
    """The images whose first bytes are those of one, and how many others there are; decoding may find more of these.

    Where there is none, all of them are given back.
    """
    broken = {image.name for image in check_headers(collection, pixel_size)}
    if not broken or len(broken) == len(collection):
        return collection, len(broken)
    return collection.subset(np.array([name not in broken for name in collection.names])), len(broken)


def tell_found(collection: Collection, pixel_size: int, reporter: Reporter) -> list[str]:
    """Say how many images there are, how they were read, and what is strange about them; returns the lines."""
    readable, n_unreadable = drop_unreadable(collection, pixel_size)
    lines = readable.describe(n_unreadable=n_unreadable).splitlines()
    for line in lines:
        reporter.say(line)
    return lines


def decode(collection: Collection, settings: DiscoverySettings, reporter: Reporter | None = None) -> Readable:
    """Decode a collection, or find it decoded."""
    reporter = reporter or Reporter()
    with reporter.progress("decoding images", Outlook("images")) as progress:
        pixels = load_pixels(collection, settings.pixel_size, progress=progress)
    return Readable(collection.subset(pixels.index) if pixels.skipped else collection, pixels)


def check_readable(images: Readable, settings: DiscoverySettings, check: Check = check_collection) -> None:
    """Refuse a collection of which too few images could be decoded, as `check` would."""
    skipped = images.pixels.skipped
    if not skipped:
        return
    try:
        check(images.collection, settings)
    except ShoalError as error:
        first = skipped[0]
        raise DataError(f"{error} ({len(skipped):,} unreadable, such as {first.name}: {first.reason})") from error
