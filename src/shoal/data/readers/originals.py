"""Where the images of a finished run lie, when that is on a network or in shards."""

from collections.abc import Callable

from shoal.data.readers.shard_patterns import is_shards
from shoal.data.readers.shards import read_shards
from shoal.data.storage.addresses import as_address, under
from shoal.errors import DataError


def is_stored(where: str) -> bool:
    """Whether a run's images came from a network or from shards, by what the run says of it."""
    return bool(where) and (as_address(where) is not None or is_shards(where))


def finder_of(where: str) -> Callable[[str], str]:
    """What gives an image by its name, as `read_stored` takes it; shards are listed once, at the first question."""
    if not is_shards(where):
        return lambda name: _below(where, name)
    address_of: dict[str, str] = {}

    def find(name: str) -> str:
        if not address_of:
            shards = read_shards(where, allow_missing=True, needs_labels=False)
            address_of.update(
                {one: shards.files.address(i, one) for i, one in enumerate(shards.listing.names)}
            )
        if name not in address_of:
            raise DataError(f"the image is not in {where} any more")
        return address_of[name]

    return find


def _below(where: str, name: str) -> str:
    address = under(where, name)
    if address is None:
        raise DataError("the path leads out of the collection")
    return address
