"""`shoal cache`: list and delete cached images, embeddings and encoders."""

import time
from typing import Annotated

import typer

from shoal.cli.console import Json, result


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete everything; it is created again when needed.")
    ] = False,
    json: Json = False,
) -> None:
    """List the cache of decoded images, embeddings and converted encoders, e.g. `shoal cache`.

    The cache is in $SHOAL_CACHE, or else in the folder shoal of the platform's cache folder. If it
    exceeds 50 GB ($SHOAL_CACHE_GB), `shoal discover` and `shoal embed` delete the least recently
    used part.
    """
    from shoal.discovery.cache import list_stores, max_bytes, remove_stores
    from shoal.files import cache_folder

    stores = list_stores()
    limit = max_bytes()
    total = sum(store.n_bytes for store in stores)
    root = cache_folder()
    rows = []
    lines = []
    for store in stores:
        day = time.strftime("%Y-%m-%d", time.localtime(store.last_used))
        rows.append({"folder": str(store.folder), "bytes": store.n_bytes, "last_used": day})
        name = store.folder.relative_to(root)
        lines.append(f"{store.n_bytes / 1e6:>9,.1f} MB  {day}  {name}")
    lines.append(f"{total / 1e6:>9,.1f} MB  of {limit / 1e9:,.0f} GB in {root}")
    if clear:
        remove_stores(stores)
        lines = [f"deleted {total / 1e6:,.1f} MB from {root}"]
    facts = {"folder": str(root), "bytes": total, "max_bytes": limit, "stores": rows}
    result("\n".join(lines), {**facts, "is_cleared": clear}, as_json=json)
