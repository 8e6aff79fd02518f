"""Images and some labels in, a finished run folder out: `shoal discover`.

The collection is decoded once and embedded with the frozen encoder, which gives a first answer; then comes training,
with the snapshot chosen on validation images set aside from the loss, and Algorithm 1 with the first answer's K. A
killed run goes on where it stopped.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.device import choose_device, encoder_device, seed_everything
from shoal.discovery.answers import write_answers, write_report
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.first_answer import answer_first
from shoal.discovery.read_and_embed import (
    broadcast_embedding,
    check_collection,
    check_decodable,
    engine_of,
    read_and_embed,
    share_embedding,
    tell_found,
)
from shoal.discovery.reporter import Reporter
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.run_folder import held_folder, start_run
from shoal.discovery.trained.train_and_answer import answer_trained
from shoal.discovery.trained.training_job import TrainingJob, check_tensorboard
from shoal.discovery.trained.trials import broadcast_no_training, share_training
from shoal.distributed import flag_from_main, is_main, others_waiting, processes
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import move_encoder
from shoal.encoders.engines import use_engine
from shoal.encoders.vision import Encoder
from shoal.errors import ShoalError
from shoal.runs import LOCK, Run, check_not_held, locked


def discover_images(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings | None = None,
    refinement: Refinement | None = None,
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

    `resume` goes on with a run that was interrupted, and leaves a finished one as it is; `force` starts over in a
    folder that holds one. `tensorboard` writes each epoch's metrics for it. After a review, the `refinement`, what
    changed is written too, and the review anew; with `report` the page as well. The folder is locked meanwhile: one
    that another process writes to is refused. Several processes, started by torchrun, share embedding, training, the
    search for neighbors and Ward's scans; the main one does the rest.
    """
    settings = settings or choose_settings()
    reporter = reporter or Reporter()
    if tensorboard:
        check_tensorboard(settings)  # said now, not after decoding and embedding
    main_device = choose_device(device)
    trunk_device = encoder_device(device)
    if is_main():
        check_not_held(out)  # said now, not after the encoder is loaded
    told = tell_found(collection, settings.pixel_size, reporter) if is_main() else []
    check_collection(collection, settings)
    run = Run(Path(out))
    with processes(main_device), use_engine(engine_of(run) if resume else None):
        seed_everything(settings.seed)
        if is_main():
            job = _Job(
                collection=collection,
                run=run,
                settings=settings,
                resume=resume,
                force=force,
                device=main_device,
                encoder_device=trunk_device,
                command=command,
                reporter=reporter,
                told=told,
                tensorboard=tensorboard,
                refinement=refinement,
                report=report,
            )
            with others_waiting():
                _discover(job)
        else:
            share_embedding(collection, settings, main_device)
            if settings.is_trained:
                share_training(collection, run, settings, main_device, resume)
        flag_from_main(True, main_device)  # until then the others help where they are called
    return run


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What the main process is to do, and who hears of it."""

    collection: Collection
    run: Run
    settings: DiscoverySettings
    resume: bool
    force: bool
    device: torch.device
    encoder_device: torch.device
    command: str
    reporter: Reporter
    told: list[str]
    """What was said before there was a log."""
    tensorboard: bool
    refinement: Refinement | None
    report: bool


def _discover(job: _Job) -> None:
    """Take the folder, unless it holds a finished run, and do in it what is left to do."""
    run = job.run
    settings = job.settings
    chosen = job.settings.of_method
    # Split as training will split it, so that a number of blocks it does not have is refused before any image is read.
    n_tail_blocks = getattr(chosen, "n_tail_blocks", None)
    encoder = load_encoder(
        chosen.encoder, n_tail_blocks=n_tail_blocks, input_size=chosen.input_size
    )
    encoder = move_encoder(encoder, job.encoder_device)

    check_images = partial(check_decodable, job.collection, settings, job.reporter)
    how: dict[str, Any] = {"resume": job.resume, "force": job.force, "check_images": check_images}
    with held_folder(run, settings, job.collection, **how) as checksum:
        if checksum is None:
            _leave(job)
            return
        with _interruption_logged(run):
            _fill(job, encoder, checksum)
        _conclude(job)


def _fill(job: _Job, encoder: Encoder, checksum: str) -> None:
    """Do the work, or what is left of it: read and embed, answer, train and choose, write."""
    began = time.perf_counter()
    run = job.run
    settings = job.settings
    if job.resume and not run.has("provenance.json"):
        job.reporter.say(f"note: nothing to resume in {run.path}, so a new run is started")
    about = {
        "encoder": settings.of_method.encoder,
        "device": str(encoder.device),
        "command": job.command,
    }
    reporter = start_run(
        run, settings, job.collection, checksum, **about, told=job.told, reporter=job.reporter
    )
    images, frozen = read_and_embed(job.collection, run, encoder, settings, reporter)
    answer = answer_first(frozen, images.collection, run, settings, reporter)
    other = None
    if settings.is_trained:
        answer, other = answer_trained(
            TrainingJob(
                frozen=frozen,
                first=answer,
                images=images,
                run=run,
                settings=settings,
                resume=job.resume,
                reporter=reporter,
                tensorboard=job.tensorboard,
                n_tail_blocks=encoder.n_tail_blocks,
            )
        )
    write_answers(run, answer, other, settings, reporter)
    counts = {"n_images": len(images.collection), "n_labeled": images.collection.n_labeled}
    run.finish(seconds=round(time.perf_counter() - began, 3), answer=answer.name, **counts)
    if not run.is_stopped:
        run.drop_checkpoints()


@contextmanager
def _interruption_logged(run: Run) -> Iterator[None]:
    """Say in train.log, where it is begun, that Ctrl-C has ended the run."""
    try:
        yield
    except KeyboardInterrupt:
        if run.has("train.log"):
            with suppress(ShoalError):  # a full disk must not hide that it was Ctrl-C
                run.log("interrupted; the same command with --resume goes on")
        raise


def _leave(job: _Job) -> None:
    """Say of a finished run that there is nothing left to do, to the other processes too."""
    run = job.run
    job.reporter.say(f"{run.path} is finished, there is nothing left to do")
    broadcast_embedding(False, job.device)
    if job.settings.is_trained:
        broadcast_no_training(job.device)
    # Whoever was killed right after finishing has left these; a run that is only looked at takes no lock.
    unreported = job.report and not run.has("report.html")
    if run.has_checkpoints or unreported or run.has(LOCK):
        with locked(run.path):
            run.drop_checkpoints()
            if unreported:
                _conclude(job)


def _conclude(job: _Job) -> None:
    """Write beside the answer what a review has changed, and the report where it is asked for."""
    if job.refinement is not None:
        job.refinement.conclude(job.run, job.reporter)
    if job.report:
        with job.reporter.progress("writing the report"):
            write_report(job.run)
