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

    The cache is in $SHOAL_CACHE, or else in the folder shoal of the platform's cache folder. `shoal
    discover` and `shoal embed` delete what was not used for 30 days.
    """
    from shoal.discovery.cache import list_stores, remove_stores
    from shoal.files import cache_folder

    stores = list_stores()
    total = sum(store.n_bytes for store in stores)
    root = cache_folder()
    rows = []
    lines = []
    for store in stores:
        day = time.strftime("%Y-%m-%d", time.localtime(store.last_used))
        rows.append({"folder": str(store.folder), "bytes": store.n_bytes, "last_used": day})
        name = store.folder.relative_to(root)
        lines.append(f"{store.n_bytes / 1e6:>9,.1f} MB  {day}  {name}")
    lines.append(f"{total / 1e6:>9,.1f} MB  in {root}")
    if clear:
        remove_stores(stores)
        lines = [f"deleted {total / 1e6:,.1f} MB from {root}"]
    facts = {"folder": str(root), "bytes": total, "stores": rows}
    result("\n".join(lines), {**facts, "is_cleared": clear}, as_json=json)
