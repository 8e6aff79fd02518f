"""`shoal cache`: the decoded images that are kept, and how to be rid of them."""

import time
from typing import Annotated

import typer

from shoal.cli.console import Json, result, say


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete them; they are made again when needed.")
    ] = False,
    json: Json = False,
) -> None:
    """List the decoded images, and encoders converted for OpenVINO, that are kept, e.g. `shoal
    cache`.

    They lie in $SHOAL_CACHE, or shoal in the platform's cache folder. Past 50 GB in all
    ($SHOAL_CACHE_GB sets another number) `shoal discover` and `shoal embed` delete what was not
    used for longest.
    """
    from shoal.discovery.cache import list_stores, max_bytes, remove_stores
    from shoal.files import cache_folder

    stores = list_stores()
    limit = max_bytes()
    total = sum(store.n_bytes for store in stores)
    lines = [
        f"{store.n_bytes / 1e6:>9,.1f} MB  {_day(store.last_used)}  {store.folder.name}"
        for store in stores
    ]
    lines.append(f"{total / 1e6:>9,.1f} MB  of {limit / 1e9:,.0f} GB in {cache_folder()}")
    if clear:
        remove_stores(stores)
        lines = [f"{total / 1e6:,.1f} MB deleted from {cache_folder()}"]
    rows = [
        {"folder": str(one.folder), "bytes": one.n_bytes, "last_used": _day(one.last_used)}
        for one in stores
    ]
    facts = {"folder": str(cache_folder()), "bytes": total, "max_bytes": limit, "stores": rows}
    result("\n".join(lines), {**facts, "is_cleared": clear}, as_json=json)
    if stores and not clear:
        say("next: shoal cache --clear deletes them; they are made again when needed")


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))
