"""Discoveries on the generated photos, and how to interrupt one."""

import signal
from pathlib import Path

from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.pipeline import discover_images
from shoal.runs import Run


def run_on(photos, out: Path, settings: DiscoverySettings, **options) -> Run:
    return discover_images(
        read_collection(photos.folder, photos.labels), out, settings, device="cpu", **options
    )


def stop(*_args: object, **_how: object) -> None:
    raise KeyboardInterrupt


def press_ctrl_c() -> None:
    """Call the handler of Ctrl-C. A real signal has ended the process of all tests; held_runs.py
    sends those."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler), "Ctrl-C has a handler"
    handler(signal.SIGINT, None)
