"""Images and some labels in, a finished run folder out: `shoal discover`.

The collection is decoded once and embedded with the frozen encoder, which gives a first answer; then comes training,
with the snapshot chosen on validation images set aside from the loss, and Algorithm 1 with the first answer's K. A
killed run goes on where it stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.data.collection import Collection
from shoal.device import choose_device, encoder_device, seed_everything
from shoal.discovery.answers import FROZEN, IN_WORDS, TRAINED, Answer, keep_answer
from shoal.discovery.broadcast import broadcast_finished, follow_main
from shoal.discovery.folder import check_folder, collection_checksum, take_folder
from shoal.discovery.frozen import answer_first, embed_frozen, engine_of, record_inputs
from shoal.discovery.readable import Check, Readable, check_collection, check_readable, decode, read_into, tell_found
from shoal.discovery.reporter import Reporter
from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.discovery.stability import repeat_estimate
from shoal.discovery.trained import answer_trained
from shoal.discovery.training import TrainingJob, check_tensorboard
from shoal.distributed import barrier, is_main, processes
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import place_encoder
from shoal.encoders.engines import use_engine
from shoal.encoders.vision import Encoder
from shoal.errors import ShoalError, UsageError
from shoal.methods.clusters import Representation
from shoal.runs import LOCK, Run, check_not_held, locked

MAX_WAIT_S = 7 * 24 * 3600.0
"""How long processes wait for each other: the others do while the main one decodes, embeds and clusters."""


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
    then: Callable[[Run], None] | None = None,
) -> Run:
    """Discover the categories of a collection and write what was found to the run folder `out`.

    `resume` goes on with a run that was interrupted, and leaves a finished one as it is; `force` starts over in a
    folder that holds one. `tensorboard` writes each epoch's metrics for it, into the same folder. Several processes,
    started by torchrun, share embedding and training; the main one does the rest.

    The folder is locked meanwhile: one that another process writes to is refused. `then` is called with the finished
    run before the lock is given back.
    """
    settings, reporter = settings or choose_settings(), reporter or Reporter()
    if tensorboard:
        check_tensorboard(settings)  # said now, not after decoding and embedding
    main_device, trunk_device = choose_device(device), encoder_device(device)
    if is_main():
        check_not_held(out)  # said now, not after the encoder is loaded
    told = tell_found(collection, settings.pixel_size, reporter) if is_main() else []
    check_collection(collection, settings)
    how = {"resume": resume, "force": force}
    with processes(main_device, timeout_s=MAX_WAIT_S), use_engine(engine_of(Run(Path(out))) if resume else None):
        seed_everything(settings.seed)
        if is_main():
            job = _Job(collection, settings, main_device, trunk_device, command, reporter, tensorboard, told, then)
            run = _discover(job, Run(Path(out)), **how)
        else:
            run = Run(Path(out))
            follow_main(collection, run, settings, main_device, resume)
        barrier()
    return run


@dataclass(frozen=True)
class _Job:
    """What the main process is to do, and who hears of it."""

    collection: Collection
    settings: DiscoverySettings
    device: torch.device
    encoder_device: torch.device
    command: str
    reporter: Reporter
    tensorboard: bool
    told: list[str]
    then: Callable[[Run], None] | None


def _discover(job: _Job, run: Run, *, resume: bool, force: bool) -> Run:
    settings, chosen = job.settings, job.settings.of_method
    # Split as training will split it, so that a number of blocks it does not have is refused before any image is read.
    n_tail_blocks = getattr(chosen, "n_tail_blocks", None)
    encoder = load_encoder(chosen.encoder, n_tail_blocks=n_tail_blocks, input_size=chosen.input_size)
    encoder = place_encoder(encoder, job.encoder_device)
    found = collection_checksum(job.collection)
    check_folder(run.path, settings, found, resume=resume, force=force)
    if resume and run.is_complete:
        return _leave(job, run)
    with locked(run.path):
        if force and run.has("provenance.json"):  # images that cannot be read must not cost a run that is there
            check_readable(decode(job.collection, settings, job.reporter), settings)
        take_folder(run.path, settings, found, resume=resume, force=force)
        if run.is_complete:  # by another process, since
            return _leave(job, run)
        _fill(job, run, encoder, found, resume=resume)
        if job.then is not None:
            job.then(run)
    return run


def _leave(job: _Job, run: Run) -> Run:
    """Say of a finished run that there is nothing left to do, to the other processes too."""
    job.reporter.say(f"{run.path} is finished, there is nothing left to do")
    broadcast_finished(job.settings, job.device)
    # Whoever was killed right after finishing has left these; a run that is only looked at takes no lock.
    unreported = job.then is not None and not run.has("report.html")
    if run.has_checkpoints or unreported or run.has(LOCK):
        with locked(run.path):
            run.drop_checkpoints()
            if job.then is not None and unreported:
                job.then(run)
    return run


def _fill(job: _Job, run: Run, encoder: Encoder, found: str, *, resume: bool) -> None:
    """Do the work, or what is left of it."""
    began, collection, settings, reporter = time.perf_counter(), job.collection, job.settings, job.reporter
    before = run.provenance if run.has("provenance.json") else {}  # of an interrupted run
    where = {"root": str(collection.root or ""), "folders": list(collection.folders)}
    about = {**where, "encoder": settings.of_method.encoder, "fingerprint": found}
    made_from = before.get("made_from")
    if resume and not before:
        reporter.say(f"note: nothing to resume in {run.path}, so a new run is started")
    run.start(
        settings, seed=settings.seed, device=str(encoder.device), command=job.command, **about, made_from=made_from
    )
    reporter = reporter.also_to(run.log)
    for line in job.told:
        run.log(line)
    images, frozen = read_and_embed(collection, run, encoder, settings, reporter)
    answer = answer_first(frozen, images, run, settings, reporter)
    other: Answer | None = None
    if settings.is_trained:
        training = TrainingJob(
            frozen=frozen,
            first=answer,
            images=images,
            run=run,
            settings=settings,
            resume=resume,
            reporter=reporter,
            tensorboard=job.tensorboard,
        )
        answer, other = answer_trained(training)
    _write(run, answer, other, settings, reporter)
    counts = {"n_images": len(images.collection), "n_labeled": images.collection.n_labeled}
    run.finish(seconds=round(time.perf_counter() - began, 3), **counts)
    if not run.is_stopped:
        run.drop_checkpoints()


def read_and_embed(
    collection: Collection,
    run: Run,
    encoder: Encoder,
    settings: DiscoverySettings,
    reporter: Reporter,
    check: Check = check_collection,
) -> tuple[Readable, Representation]:
    """Decode and embed; where that fails before the first embedding is kept, no run is left behind."""
    is_resumed = run.provenance.get("made_from") is not None
    try:
        images = read_into(run, collection, settings, reporter, check)
        record_inputs(run, images, encoder)
        return images, embed_frozen(images, run, encoder, reporter)
    except ShoalError as error:
        # A run that must not be resumed with other images may still be with its own.
        if not run.has("frozen.npy") and not (is_resumed and isinstance(error, UsageError)):
            run.abandon()
        raise


def _write(run: Run, answer: Answer, other: Answer | None, settings: DiscoverySettings, reporter: Reporter) -> None:
    """Write the answer that stands, and see to it that the other one, where there is one, is kept beside it.

    A run that was stopped early and goes on has an answer already; what is not written again of it is removed.
    """
    run.drop("accuracy.json", "map.npz", "model.safetensors", "report.html")
    old = Run(run.path / TRAINED)
    if old.has("provenance.json") and (other is None or other.name != TRAINED):
        old.abandon()
    answer.write(run, settings, _repeats(answer, settings, reporter))
    if answer.name == TRAINED:
        answer.write_training(run)
    elif settings.is_trained:
        Run(run.path / FROZEN).abandon()  # the run itself is the first answer now
    if other is not None:
        if other.name == TRAINED:
            keep_answer(run, other, settings)
        reporter.say(f"{IN_WORDS[other.name]} is kept in {run.path / other.name}")
    run.log(answer.in_words())


def _repeats(answer: Answer, settings: DiscoverySettings, reporter: Reporter) -> list[int]:
    """The estimate of K on random parts of the images, as often as was asked."""
    if not settings.stability or settings.n_clusters is not None:
        return []
    inference = settings.of_method.inference
    embeddings = answer.discovery.embeddings if answer.counted_on is None else answer.counted_on
    with reporter.progress("repeating the estimate of K"):
        return repeat_estimate(embeddings, answer.found.given, settings.stability, inference, seed=settings.seed)
