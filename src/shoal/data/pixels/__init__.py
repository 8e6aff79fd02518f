"""Pixels: every image decoded once, in parallel, into a memory-mapped cache that later epochs and
runs only read.

Names are imported on first use, so that a decoding worker starts without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.pixels.headers import check_headers
    from shoal.data.pixels.loading import NoneReadable, Pixels, Skipped, load_pixels
    from shoal.data.pixels.workers import available_cpus

__all__ = ["NoneReadable", "Pixels", "Skipped", "available_cpus", "check_headers", "load_pixels"]

_MODULES = {"available_cpus": "workers", "check_headers": "headers"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'loading')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
