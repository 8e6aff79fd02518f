"""Thumbnails as text inside a page, within a budget of bytes."""

import base64
from collections.abc import Iterable

from shoal.runs import RunView

PROBE = 64
"""How many thumbnails are looked at to learn how large they are."""


def data_uri(image: bytes) -> str | None:
    """Write a WebP, PNG, JPEG or GIF as a data URI.

    None for anything else, which a page must not carry.
    """
    kind = _kind(image)
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}" if kind else None


def data_uris(run: RunView, rows: Iterable[int], budget: int) -> dict[int, str]:
    """The thumbnails of `rows` as data URIs, from the first on, until `budget` bytes are spent.

    Empty where the run has no thumbnails. Reads about as many as fit, not the whole archive.
    """
    wanted = list(dict.fromkeys(int(row) for row in rows))
    if not wanted or not run.has_thumbnails:
        return {}
    uri_of: dict[int, str] = {}
    spent = 0
    at = 0
    step = PROBE
    while at < len(wanted) and spent < budget:
        for row, image in zip(
            wanted[at : at + step], run.thumbnails(wanted[at : at + step]), strict=True
        ):
            uri = data_uri(image)
            if uri and spent + len(uri) <= budget:
                uri_of[row] = uri
            spent += len(uri or "")
        at += step
        step = max(PROBE, int((budget - spent) / max(1.0, spent / at)))
    return uri_of


def _kind(image: bytes) -> str | None:
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    starts = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
    return next((kind for start, kind in starts.items() if image.startswith(start)), None)
