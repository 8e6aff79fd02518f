"""Images and some labels in, a finished run folder out: `shoal discover`.

The frozen encoder gives a first answer; then comes training, with the snapshot chosen on validation
images set aside from the loss, and Algorithm 1 with the first answer's K. A killed run goes on
where it stopped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.device import encoder_device
from shoal.discovery.answers import write_answers, write_report
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.first_answer import answer_first
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import Reporter
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.run_job import run_job
from shoal.discovery.trained.train_and_answer import answer_trained
from shoal.discovery.trained.training import check_tensorboard
from shoal.runs import Run


@dataclass(frozen=True, eq=False, kw_only=True)
class DiscoveryJob(Job):
    """A discovery that nothing stands against yet: it can be looked at with `preview`, or done with
    `run_job`."""

    refinement: Refinement | None = None
    """The review to go on from."""
    report: bool = True

    def check(self, collection: Collection) -> None:
        """Refuse now what could only fail later."""
        if self.tensorboard:
            check_tensorboard(self.settings)
        super().check(collection)

    def plan(self, readable: Collection) -> dict[str, Any]:
        """The images by category, and whether something is trained."""
        return {
            "n_images": len(readable),
            "n_labeled": readable.n_labeled,
            "n_unlabeled": len(readable) - readable.n_labeled,
            "n_unreadable": len(self.collection) - len(readable) + len(self.collection.left_out),
            "classes": list(readable.classes),
            "class_sizes": readable.class_sizes.tolist(),
            "method": self.settings.method,
            "trains": self.settings.is_trained,
        }

    def answer(self, images: EmbeddedImages) -> dict[str, Any]:
        """Answer without training, then with it; write what stands."""
        answer = answer_first(self, images)
        other = None
        if self.settings.is_trained:
            answer, other = answer_trained(self, images, answer)
        write_answers(self, answer, other)
        return {"answer": answer.name}

    @property
    def is_concluded(self) -> bool:
        """Whether the report is written, which comes last."""
        return not self.report or self.run.has("report.html")

    def conclude(self) -> None:
        """Write beside the answer what a review has changed, and the report where it is asked
        for."""
        if self.refinement is not None:
            self.refinement.conclude(self.run, self.reporter)
        if self.report:
            with self.reporter.progress("writing the report"):
                write_report(self.run)


def discover_images(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings | None = None,
    *,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    reporter: Reporter | None = None,
    tensorboard: bool = False,
    report: bool = False,
) -> Run:
    """Discover the categories of a collection and write what was found to the run folder `out`.

    `resume` goes on with a run that was interrupted, and leaves a finished one as it is; `force`
    starts over in a folder that holds one.
    """
    job = DiscoveryJob(
        collection=collection,
        settings=settings or choose_settings(),
        run=Run(Path(out)),
        encoder_device=encoder_device(device),
        resume=resume,
        force=force,
        command=command,
        reporter=reporter or Reporter(),
        tensorboard=tensorboard,
        report=report,
    )
    run_job(job)
    return job.run
