"""Decoded pixels in a memory-mapped cache, which later epochs and runs only read.

Names are imported on first use, so that decoding workers start without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.pixels.loading import (
        NoneReadable,
        Pixels,
        Skipped,
        check_headers,
        load_pixels,
    )
    from shoal.data.pixels.workers import available_cpus

__all__ = ["NoneReadable", "Pixels", "Skipped", "available_cpus", "check_headers", "load_pixels"]


def __getattr__(name: str) -> Any:
    if name == "available_cpus":
        return import_module(f"{__name__}.workers").available_cpus
    if name in __all__:
        return getattr(import_module(f"{__name__}.loading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
