"""Run discovery on the generated photos, and interrupt it."""

import signal
from pathlib import Path

import torch

from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.discovery.api import DiscoveryJob
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.run_job import run_job
from shoal.runs import Run


class WithoutReport(DiscoveryJob):
    def write_final_outputs(self) -> None:
        """Write no report, which takes longer than the small run."""


def discover_images(
    collection: Collection, out: Path, settings: DiscoverySettings, **options
) -> Run:
    job = WithoutReport(
        collection=collection,
        settings=settings,
        run=Run(out),
        device=torch.device("cpu"),
        **options,
    )
    run_job(job)
    return job.run


def run_on(photos, out: Path, settings: DiscoverySettings, **options) -> Run:
    return discover_images(read_collection(photos.folder, photos.labels), out, settings, **options)


def stop(*_args: object, **_how: object) -> None:
    raise KeyboardInterrupt


def press_ctrl_c() -> None:
    """Call the handler of Ctrl-C. A real signal once ended the test process itself; held_runs.py
    sends real ones to other processes."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler), "Ctrl-C has a handler"
    handler(signal.SIGINT, None)
