"""Where the images of a finished run lie, when that is on a network or in shards."""

import posixpath
from collections.abc import Callable
from functools import cache

from shoal.data.readers.shard_patterns import is_shards
from shoal.data.readers.shards import read_shards
from shoal.data.storage.addresses import as_address, why_unfit
from shoal.errors import DataError


def is_stored(where: str) -> bool:
    """Whether a run's images came from a network or from shards, by what the run says of it."""
    return bool(where) and (as_address(where) is not None or is_shards(where))


def finder_of(where: str) -> Callable[[str], str]:
    """What gives an image by its name, as `read_stored` takes it; shards are listed once, at the
    first question."""
    if not is_shards(where):
        return lambda name: _below(where, name)

    @cache
    def addresses() -> dict[str, str]:
        listing = read_shards(where, allow_missing=True, needs_labels=False)
        assert listing.stored is not None
        return {name: listing.stored.address(i, name) for i, name in enumerate(listing.names)}

    def find(name: str) -> str:
        if name not in addresses():
            raise DataError(f"the image is not in {where} any more")
        return addresses()[name]

    return find


def _below(where: str, name: str) -> str:
    inside = posixpath.normpath(name)
    if why_unfit(inside) is not None:
        raise DataError("the path leads out of the collection")
    return f"{where.removesuffix('/')}/{inside}"
