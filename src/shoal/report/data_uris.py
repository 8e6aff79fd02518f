"""Thumbnails as data URIs, within a budget of bytes."""

import base64
from collections.abc import Iterable

from shoal.runs import THUMBNAILS, Run


def data_uris(run: Run, rows: Iterable[int], budget: int) -> dict[int, str]:
    """Return the thumbnails of the first `rows` that fit into `budget` bytes, as data URIs."""
    uri_of: dict[int, str] = {}
    if not run.has(THUMBNAILS):
        return uri_of
    wanted = list(dict.fromkeys(rows))
    for row, picture in zip(wanted, run.thumbnails(wanted), strict=True):
        uri = f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
        budget -= len(uri)
        if budget < 0:
            break
        uri_of[row] = uri
    return uri_of
