"""Images on a network: every one below an address."""

from dataclasses import dataclass, replace

from shoal.data.readers.folders import (
    IMAGE_SUFFIXES,
    FolderContents,
    Listing,
    is_hidden,
    is_image,
)
from shoal.data.storage.addresses import Address, why_unfit
from shoal.data.storage.remote import FileState, asking, list_remote
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError


@dataclass(frozen=True, eq=False)
class RemoteFolder:
    """What lies below an address."""

    listing: Listing
    shards: tuple[str, ...]
    """The suffixes of files that may be shards."""


def list_remote_folder(address: Address) -> RemoteFolder:
    """List every image below an address, at any depth; names with a leading dot are left out, as
    in a local folder."""
    if address.scheme in ("http", "https"):
        raise DataError(
            f"{address}: a web server lists no folders; give a table of addresses (csv, tsv, "
            "jsonl, parquet), a .tar "
            "or a .parquet shard that lies there"
        )
    contents = FolderContents()
    states = dict[str, FileState]()
    shards = set[str]()
    with asking(address):
        for name, state in list_remote(address):
            if is_hidden(name):
                contents.hidden += name.lower().endswith(IMAGE_SUFFIXES)
                continue
            shards |= {suffix for suffix in (".tar", ".parquet") if name.lower().endswith(suffix)}
            if is_image(name, contents):
                reason = why_unfit(name)
                if reason is None:
                    states[name] = state
                else:
                    contents.left_out[ascii(name)[1:-1]] = reason
    contents.names = list(states)
    listing = contents.listing()
    stored = StoredFiles.of_states(str(address), [states[name] for name in listing.names])
    return RemoteFolder(replace(listing, stored=stored), tuple(sorted(shards)))
