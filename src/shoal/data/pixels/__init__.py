"""Pixels: every image decoded once, in parallel, into a memory-mapped cache that later epochs and runs only read.

Names are imported on first use, so that a decoding worker starts without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.pixels.decoding import MAX_PIXELS
    from shoal.data.pixels.headers import check_headers
    from shoal.data.pixels.loading import NoneReadable, Pixels, Skipped, load_pixels
    from shoal.data.pixels.worker_pool import available_cpus

_HOMES = {
    "MAX_PIXELS": "decoding",
    "NoneReadable": "loading",
    "Pixels": "loading",
    "Skipped": "loading",
    "available_cpus": "worker_pool",
    "check_headers": "headers",
    "load_pixels": "loading",
}

__all__ = [
    "MAX_PIXELS",
    "NoneReadable",
    "Pixels",
    "Skipped",
    "available_cpus",
    "check_headers",
    "load_pixels",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
