"""Thumbnails as data URIs, within a budget of bytes."""

import base64
from collections.abc import Iterable

from shoal.runs import THUMBNAILS, Run, Thumbnails

STARTS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}


def data_uri(image: bytes) -> str:
    """Return a WebP, PNG, JPEG or GIF as a data URI; '' for anything else."""
    for start, kind in STARTS.items():
        if image.startswith(start):
            return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    return ""


def data_uris(run: Run, rows: Iterable[int], budget: int) -> dict[int, str]:
    """Return the thumbnails of the first `rows` that fit into `budget` bytes, as data URIs."""
    uri_of: dict[int, str] = {}
    if not run.has(THUMBNAILS):
        return uri_of
    thumbnails = Thumbnails(run.path)
    for row in dict.fromkeys(rows):
        uri = data_uri(thumbnails.read([row])[0])
        budget -= len(uri)
        if budget < 0:
            break
        if uri:
            uri_of[row] = uri
    return uri_of
