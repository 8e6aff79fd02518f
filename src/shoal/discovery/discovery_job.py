"""The job of `shoal discover`: a collection with some labels in, a finished run folder out.

The frozen encoder yields the frozen result. Training follows if held-out labels can show that it
helps; the better result becomes the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.data.collection import Collection
from shoal.device import AnyDevice, choose_device
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import Reporter
from shoal.discovery.results import make_frozen_result, write_report, write_results
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.run_job import run_job
from shoal.discovery.trained.trained_result import train_and_choose
from shoal.runs import Run
from shoal.settings import Plain


@dataclass(frozen=True, kw_only=True)
class DiscoveryJob(Job):
    """A discovery, for `preview` or `run_job`."""

    refinement: Refinement | None = None
    """The review of an earlier run that this one continues."""
    report: bool = True

    def plan(self) -> Plain:
        """Return counts of images by category, the method, and whether it may train."""
        return {
            "n_images": len(self.collection),
            "n_labeled": self.collection.n_labeled,
            "n_unlabeled": len(self.collection) - self.collection.n_labeled,
            "n_unreadable": len(self.collection.left_out),
            "classes": list(self.collection.classes),
            "class_sizes": self.collection.class_sizes.tolist(),
            "method": self.settings.method,
            "trains": self.settings.is_trained,
        }

    def compute(self, images: EmbeddedImages) -> Plain:
        """Cluster the frozen embeddings, train, and write the better result."""
        result = make_frozen_result(self, images)
        other = None
        if self.settings.is_trained:
            result, other = train_and_choose(self, images, result)
        write_results(self, result, other)
        return {"result": result.name}

    def write_final_outputs(self) -> None:
        """Write changes.json after a review, and the report."""
        if self.refinement is not None:
            self.refinement.write_final_outputs(self.run, self.reporter)
        if self.report:
            with self.reporter.progress("writing the report"):
                write_report(self.run)


def discover_images(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings | None = None,
    *,
    device: AnyDevice = None,
    reporter: Reporter | None = None,
    report: bool = False,
    **options: Any,
) -> Run:
    """Discover the categories of a collection and return the run folder `out`.

    `options` are further fields of `DiscoveryJob`.
    """
    job = DiscoveryJob(
        collection=collection,
        settings=settings or choose_settings(),
        run=Run(Path(out)),
        device=choose_device(device),
        reporter=reporter or Reporter(),
        report=report,
        **options,
    )
    run_job(job)
    return job.run
