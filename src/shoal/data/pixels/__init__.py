"""Pixels: every image decoded once, in parallel, into a memory-mapped cache that later epochs and runs only read."""

from shoal.data.pixels.decoding import MAX_PIXELS
from shoal.data.pixels.headers import check_headers
from shoal.data.pixels.loading import NoneReadable, Pixels, Skipped, load_pixels
from shoal.data.pixels.worker_pool import available_cpus

__all__ = ["MAX_PIXELS", "NoneReadable", "Pixels", "Skipped", "available_cpus", "check_headers", "load_pixels"]
