"""Run discovery on the generated photos, and interrupt it."""

import signal
from pathlib import Path

from shoal.data.readers import read_collection
from shoal.discovery.discovery_job import discover_images
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.runs import Run


def run_on(photos, out: Path, settings: DiscoverySettings, **options) -> Run:
    return discover_images(
        read_collection(photos.folder, photos.labels), out, settings, device="cpu", **options
    )


def stop(*_args: object, **_how: object) -> None:
    raise KeyboardInterrupt


def press_ctrl_c() -> None:
    """Call the handler of Ctrl-C. A real signal once ended the test process itself; held_runs.py
    sends real ones to other processes."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler), "Ctrl-C has a handler"
    handler(signal.SIGINT, None)
