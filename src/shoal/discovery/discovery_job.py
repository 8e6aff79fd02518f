"""The job of `shoal discover`: a collection with some labels in, a finished run folder out.

The frozen encoder yields the frozen result. Training follows if held-out labels can show that it
helps; the better result becomes the run.
"""

from dataclasses import dataclass

from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.results import make_frozen_result, write_report, write_results
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.trained.trained_result import train_and_choose
from shoal.settings import Plain


@dataclass(frozen=True, kw_only=True)
class DiscoveryJob(Job):
    """A discovery, for `preview` or `run_job`."""

    refinement: Refinement | None = None
    """The review of an earlier run that this one continues."""

    def plan(self) -> Plain:
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
        result = make_frozen_result(self, images)
        other = None
        if self.settings.is_trained:
            result, other = train_and_choose(self, images, result)
        write_results(self, result, other)
        return {"result": result.name}

    def write_final_outputs(self) -> None:
        if self.refinement is not None:
            self.refinement.write_final_outputs(self.run, self.reporter)
        with self.reporter.progress("writing the report"):
            write_report(self.run)
