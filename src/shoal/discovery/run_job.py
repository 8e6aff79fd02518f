"""How a job is done: checked, decoded, embedded, answered, written; by one process, or by several
that torchrun started.

The main process leads. The others wait for its word: to embed, or to train what it trains.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.data.pixels import Pixels
from shoal.device import seed_everything
from shoal.discovery.job import Job
from shoal.discovery.read_and_embed import (
    check_rest,
    decode,
    drop_unreadable,
    embed_images,
    engine_of,
    new_trunk,
    tell_found,
)
from shoal.discovery.reporter import SILENT
from shoal.discovery.run_folder import check_run_folder, collection_checksum
from shoal.discovery.trained.training import Training, represent
from shoal.distributed import flag_from_main, is_main, object_from_main, others_waiting, processes
from shoal.encoders.catalog import ENCODERS, is_hub_id
from shoal.encoders.embed import embed, move_encoder
from shoal.encoders.engines import use_engine
from shoal.encoders.hub import is_cached
from shoal.encoders.vision import Encoder
from shoal.errors import DataError, Diverged, ShoalError
from shoal.methods.clusters import Representation
from shoal.runs import LOCK, Run, check_not_held, locked


def run_job(job: Job) -> None:
    """Do a job and write its run folder; of a finished one that is resumed nothing is left to do.

    The folder is locked meanwhile: one that another process writes to is refused.
    """
    told: list[str] = []
    if is_main():
        check_not_held(job.run.path)  # said now, not after the encoder is loaded
        told = tell_found(job.collection, job.settings.pixel_size, job.reporter)
    job.check(job.collection)
    engine = engine_of(job.run) if job.resume else None
    with processes(job.device), use_engine(engine):
        seed_everything(job.settings.seed)
        if is_main():
            with others_waiting():
                _lead(job, told)
            flag_from_main(False, job.device)
        else:
            _follow(replace(job, reporter=SILENT))


def preview(job: Job) -> dict[str, Any]:
    """Refuse what a job would refuse before it decodes images, and say what it would do; writes
    nothing.

    The encoder is loaded, unless that would take a download. Of the images the first bytes are
    read: what breaks off later is counted as readable here.
    """
    collection = job.collection
    encoder = job.settings.of_method.encoder
    job.check(collection)
    is_local = encoder in ENCODERS or not is_hub_id(encoder) or Path(encoder).expanduser().exists()
    is_here = is_local or is_cached(encoder)
    if is_here:
        job.load_encoder()
    check_not_held(job.run.path)
    _check_folder(job)
    readable, n_unreadable = drop_unreadable(collection, job.settings.pixel_size)
    if n_unreadable == len(collection):
        raise DataError(f"none of the {n_unreadable:,} images can be decoded; are they images?")
    if n_unreadable:
        check_rest(job, readable, f"{n_unreadable:,} unreadable")
    return {
        "counted": readable.count(n_unreadable=n_unreadable),
        "notes": list(collection.notes),
        "out": str(job.run.path),
        "is_finished": job.resume and job.run.is_complete,
        "encoder": encoder,
        "encoder_is_here": is_here,
        "device": str(job.encoder_device),
        **job.plan(readable),
    }


def _check_folder(job: Job) -> str:
    """Refuse a folder that must not be written to; the checksum of the images."""
    checksum = collection_checksum(job.collection)
    check_run_folder(job.run.path, job.config, checksum, resume=job.resume, force=job.force)
    return checksum


def _lead(job: Job, told: list[str]) -> None:
    """Decode, take the folder, and do in it what is left to do; `told` was said already."""
    began = time.perf_counter()
    run = job.run
    checksum = _check_folder(job)
    if job.resume and run.is_complete:
        _leave(job)
        return
    encoder = move_encoder(job.load_encoder(), job.encoder_device)
    if job.resume and not run.has("provenance.json"):
        job.reporter.say(f"note: nothing to resume in {run.path}, so a new run is started")
    pixels = decode(
        job
    )  # before anything is written: images that fail must not cost a run that is there
    with locked(run.path):
        if job.resume and run.is_stopped:
            run.note(finished=None)
        Run.create(run.path, force=job.force)
        with _interruption_logged(run):
            _start(job, encoder, checksum, told)
            job = replace(job, reporter=job.reporter.also_to(run.log))
            _fill(job, pixels, encoder, began)
        job.conclude()


def _start(job: Job, encoder: Encoder, checksum: str, told: list[str]) -> None:
    """Begin the run, or go on with it; its log starts with what was said already."""
    run = job.run
    made_from = None
    if run.has("provenance.json"):
        made_from = run.provenance.get("made_from")
    run.start(
        job.config,
        seed=job.settings.seed,
        device=str(encoder.device),
        command=job.command,
        root=job.collection.where,
        folders=list(job.collection.folders),
        encoder=job.settings.of_method.encoder,
        fingerprint=checksum,
        made_from=made_from,
    )
    for line in told:
        run.log(line)


def _fill(job: Job, pixels: Pixels, encoder: Encoder, began: float) -> None:
    """Embed and answer; the run is then finished."""
    run = job.run
    images = embed_images(job, pixels, encoder)
    try:
        noted = job.answer(images)
    finally:
        images.trunk.free()
    run.finish(
        seconds=round(time.perf_counter() - began, 3),
        n_images=len(images.collection),
        n_labeled=images.collection.n_labeled,
        **noted,
    )
    if not run.is_stopped:
        run.drop_checkpoints()


@contextmanager
def _interruption_logged(run: Run) -> Iterator[None]:
    """Say in train.log that Ctrl-C has ended the run."""
    try:
        yield
    except KeyboardInterrupt:
        if run.has("train.log"):
            with suppress(ShoalError):  # a full disk must not hide that it was Ctrl-C
                run.log("interrupted; the same command with --resume continues")
        raise


def _leave(job: Job) -> None:
    """Say of a finished run that there is nothing left to do, and remove what a kill right after
    its end has left."""
    run = job.run
    job.reporter.say(f"{run.path} is finished, there is nothing left to do")
    if run.has_checkpoints or run.has(LOCK) or not job.is_concluded:
        with locked(run.path):
            run.drop_checkpoints()
            if not job.is_concluded:
                job.conclude()


def _follow(job: Job) -> None:
    """Embed and train what the main process does, whenever it says so, until it has nothing more to
    say."""
    pixels: Pixels | None = None
    learned: Representation | None = None
    while flag_from_main(False, job.device):
        training: Training | None = object_from_main(None, job.device)
        if pixels is None:
            pixels = decode(job)
            trunk = new_trunk(job, pixels)
        if training is None:
            embed(pixels, job.load_encoder().to(job.device))
            continue
        model = None
        if training.goes_on and learned is not None:
            model = learned.model
        with suppress(Diverged):  # which the main process hears of too
            learned = represent(job, trunk, training, start=model)
    if pixels is not None:
        trunk.free()
