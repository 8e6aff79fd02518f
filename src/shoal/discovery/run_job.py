"""Run a job: check, decode, embed, compute the results, write the run folder; and `shoal embed`,
which writes the embeddings of images to a file.

The main process runs the job. Other processes, started by torchrun, wait for its messages and help
it to embed and to train.

Shapes: N images, D columns.
"""

import hashlib
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from shoal.arrays import digest_names, read_cached, write_cached
from shoal.data.collection import Collection
from shoal.data.pixels.loading import Pixels, load_pixels, none_readable
from shoal.data.pixels.workers import available_cpus
from shoal.data.readers.embeddings import Embeddings
from shoal.device import AnyDevice, choose_device, describe_device, seed_everything
from shoal.discovery.cache import trim_cache
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import EMBEDDING, LOGGED, SILENT, Reporter
from shoal.discovery.trained.trained_result import Training, represent
from shoal.distributed import (
    broadcast,
    is_main,
    processes,
    world_size,
)
from shoal.encoders.catalog import DEFAULT_ENCODER, ENCODERS, is_hub_id, load_encoder
from shoal.encoders.engines import TORCH, use_engine
from shoal.encoders.hub import is_cached
from shoal.encoders.vision import Encoder, check_directions, embed, embed_blocks
from shoal.encoders.weights import digest_weights
from shoal.errors import DataError, Diverged, ShoalError, UsageError, count, first_few, plural
from shoal.files import (
    atomic_file,
    cache_folder,
    check_writable,
    scratch_array,
    write_text,
    writing,
)
from shoal.methods.method import Representation, TrunkOutputs, to_numpy
from shoal.runs import THUMBNAILS, Run, check_not_locked, csv_text, locked, read_vectors
from shoal.settings import Plain, differences
from shoal.training.inputs import TokenCollector

# Pixels along the longer side
THUMBNAIL_SIDE = 64

# From 0 to 6; 4 takes twice as long and saves 2 %
WEBP_EFFORT = 2

# Images given to the threads at a time, so that few results wait in memory
BATCH_IMAGES = 1024


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """Yield each image as a small WebP file, in order; smaller pictures are not enlarged."""

    def make(row: int) -> bytes:
        image = Image.fromarray(pixels[row])
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=80, method=WEBP_EFFORT)
        return file.getvalue()

    # Threads are enough: Pillow releases the GIL while it resizes and encodes.
    with ThreadPoolExecutor(available_cpus()) as threads:
        for start in range(0, len(pixels), BATCH_IMAGES):
            yield from threads.map(make, range(start, min(start + BATCH_IMAGES, len(pixels))))


def run_job(job: Job) -> None:
    """Run a job and write its run folder, which is locked while the job runs.

    A complete run is left as it is, except that an interrupted cleanup is finished.
    """
    if is_main():
        check_not_locked(job.run.path)  # before the encoder is loaded, which takes a while
        report_collection(job.collection, job.reporter)
    job.check(job.collection)
    engine = None
    if job.resume and job.run.has("provenance.json") and not job.run.is_complete:
        engine = (job.run.provenance.get("made_from") or {}).get("engine", TORCH)
    with processes(job.device), use_engine(engine):
        seed_everything(job.settings.seed)
        if is_main():
            _run_main(job)
            broadcast(None, job.device)  # no more work for the other processes
        else:
            _run_worker(replace(job, reporter=SILENT))


def preview(job: Job) -> Plain:
    """Return what a job would do, for --dry-run; raise any error that can be found without decoding
    images.

    Writes nothing, and opens no image. The encoder is loaded unless it would have to be downloaded.
    """
    collection = job.collection
    encoder = job.settings.method_settings.encoder
    job.check(collection)
    is_local = encoder in ENCODERS or not is_hub_id(encoder) or Path(encoder).expanduser().exists()
    is_available = is_local or is_cached(encoder)
    if is_available:
        job.load_encoder()
    check_not_locked(job.run.path)
    _check_folder(job)
    return {
        "counted": collection.count(),
        "layout": collection.layout,
        "categories": dict(zip(collection.classes, collection.class_sizes.tolist(), strict=True)),
        "notes": collection.notes,
        "out": str(job.run.path),
        "is_finished": job.run.is_complete and not job.force,
        "encoder": encoder,
        "encoder_is_installed": is_available,
        "device": str(job.device),
        **job.plan(),
    }


def report_collection(collection: Collection, reporter: Reporter) -> None:
    for line in collection.describe().splitlines():
        reporter.report(line)


def _run_main(job: Job) -> None:
    began = time.perf_counter()
    run = job.run
    checksum = _check_folder(job)
    if not job.force and (run.is_complete or (run.is_stopped and not job.resume)):
        _clean_up_finished(job)
        return
    encoder = job.load_encoder().to(job.device)
    if job.resume and not run.has("provenance.json"):
        job.reporter.report(f"note: nothing to resume in {run.path}; starting a new run")
    # Decode first: unreadable images must raise before --force deletes the previous run.
    pixels = _decode(job)
    with locked(run.path):
        if job.resume and run.is_stopped:
            run.note(finished=None)
        Run.create(run.path, force=job.force)
        _start_run(job, encoder, checksum)
        report_collection(job.collection, replace(SILENT, report=run.log))
        job = replace(job, reporter=job.reporter.also_to(run.log))
        try:
            images = _embed(job, pixels, encoder)
            try:
                provenance = job.compute(images)
            finally:
                images.trunk_outputs.free()
        except KeyboardInterrupt:
            with suppress(ShoalError):  # a full disk must not hide the KeyboardInterrupt
                run.log("interrupted; to continue, run the same command with --resume")
            raise
        run.note(
            seconds=round(time.perf_counter() - began, 3),
            n_images=len(images.collection),
            n_labeled=images.collection.n_labeled,
            **provenance,
        )
        job.write_final_outputs()
        run.finish()
        if not run.is_stopped:
            run.drop_checkpoints()


def _run_worker(job: Job) -> None:
    """Embed or train when the main process asks, until the main process has finished."""
    pixels: Pixels | None = None
    while (work := broadcast(None, job.device)) is not None:
        if pixels is None:
            pixels = _decode(job)
            trunk_outputs = TrunkOutputs(pixels=pixels, device=job.device)
        if not isinstance(work, Training):
            embed(pixels, job.load_encoder().to(job.device))
            continue
        with suppress(Diverged):  # the main process raises and reports it
            represent(job, trunk_outputs, work)
    if pixels is not None:
        trunk_outputs.free()


def _check_folder(job: Job) -> str:
    """Raise if the job must not write to its run folder; return the checksum of the images."""
    run = job.run
    checksum = collection_checksum(job.collection)
    if job.resume and job.force:
        raise UsageError(
            "resume and force: found both, but resume continues a run and force deletes it; give "
            "only one"
        )
    if not job.force and run.has("config.yaml") and run.has("provenance.json"):
        if not job.resume and not run.is_finished:
            raise UsageError(
                f"{run.path}: found an unfinished run; give --resume to continue it, or --force to "
                "start over"
            )
        _check_same(job, checksum)
        if run.is_finished:  # complete, or stopped early by the user
            return checksum
    run.check_free(force=job.force)
    return checksum


def _check_same(job: Job, checksum: str) -> None:
    """Raise if the settings, images or labels differ from those of the run in the folder."""
    run = job.run
    started = run.config_as(type(job.config))
    # The time limit may change: a run that it stopped can be resumed with a different limit.
    started = replace(started, max_minutes=job.config.max_minutes)
    changed = differences(job.config, started)
    if run.provenance.get("fingerprint") != checksum:
        changed.append("other images or labels")
    if changed:
        raise UsageError(
            f"{run.path}: contains a run that differs from this one ({'; '.join(changed)}); repeat "
            "the command of that run, give another --out, or --force to start over"
        )


def collection_checksum(collection: Collection) -> str:
    """Return a checksum of the classes, and of the name, label and file size of every image.

    For images in memory it uses their content instead of the file size; for remote images and
    shards, the size and the version or date that the store reports. It costs one `stat` per file.
    A file replaced by another of the same size is detected later, by the checksum of the pixels in
    `_record_inputs`.
    """
    digest = hashlib.sha256(digest_names(collection.names, collection.labels).encode())
    digest.update("\0".join(collection.classes).encode("utf-8", "surrogateescape"))
    if collection.previous is not None:
        digest.update(collection.previous.checksum.encode())
    if collection.stored is not None:
        digest.update("\0".join(collection.stored.states).encode())
        return digest.hexdigest()
    for i in range(len(collection)):
        source = collection.source(i)
        if not isinstance(source, Path):
            digest.update(np.asarray(source).tobytes())
            continue
        n_bytes = -1  # a missing or unreadable file is skipped when images are decoded
        with suppress(OSError):
            n_bytes = source.stat().st_size
        digest.update(str(n_bytes).encode())
    return digest.hexdigest()


def _clean_up_finished(job: Job) -> None:
    """Report that a run is finished, and finish its cleanup if that was interrupted."""
    run = job.run
    if run.is_stopped:
        job.reporter.report(
            f"{run.path} is finished, but its training was stopped early; give --resume to "
            "continue it"
        )
        return
    job.reporter.report(f"{run.path} is finished; there is nothing left to do")
    if run.has_checkpoints:
        with locked(run.path):
            run.drop_checkpoints()


def _start_run(job: Job, encoder: Encoder, checksum: str) -> None:
    """Write config.yaml and provenance.json.

    A resumed run keeps `made_from`, the checksums of its inputs.
    """
    made_from = None
    if job.run.has("provenance.json"):
        made_from = job.run.provenance.get("made_from")
    job.run.start(
        job.config,
        seed=job.settings.seed,
        device=str(encoder.device),
        command=job.command,
        root=job.collection.where,
        folders=list(job.collection.folders),
        encoder=job.settings.method_settings.encoder,
        fingerprint=checksum,
        made_from=made_from,
    )


def _decode(job: Job) -> Pixels:
    """Decode the images of a job; raise if too few remain."""
    pixels = decode(job.collection, job.settings.pixel_size, job.reporter)
    if pixels.skipped:
        try:
            job.check(job.collection.subset(pixels.index))
        except ShoalError as error:
            name, reason = next(iter(pixels.skipped.items()))
            first = f"for example {name}: {reason}"
            raise DataError(f"{error} ({len(pixels.skipped):,} unreadable, {first})") from error
    return pixels


def decode(collection: Collection, pixel_size: int, reporter: Reporter) -> Pixels:
    """Decode images, or read them from the pixel cache, which is kept below its limit."""
    with reporter.progress("decoding images", "images") as progress:
        pixels = load_pixels(collection, pixel_size, progress=progress)
    if not len(pixels):
        raise none_readable(pixels.skipped)
    if collection.images is None and is_main():
        for removed in trim_cache(collection.where, pixel_size):
            reporter.report(
                f"note: deleted {removed.folder}, because the pixel cache was too large"
            )
    return pixels


def _embed(job: Job, pixels: Pixels, encoder: Encoder) -> EmbeddedImages:
    """Embed the decoded images with the frozen encoder, and write thumbnails and skipped.csv."""
    run = job.run
    collection = job.collection
    if pixels.skipped:
        collection = collection.subset(pixels.index)
    left_out = {**pixels.skipped, **job.collection.left_out}
    run.note(n_unreadable=len(left_out))
    if left_out:
        skipped = csv_text(("path", "reason"), sorted(left_out.items()))
        write_text(run.path / "skipped.csv", skipped)
        counted = collection.count(n_unreadable=len(pixels.skipped))
        job.reporter.report(f"{counted}, listed in {run.path / 'skipped.csv'}")
    if copies := pixels.copies:
        job.reporter.report(
            f"note: {count(len(copies), 'image')} {plural(len(copies), 'has')} the same pixels "
            f"as another one: {first_few(copies)}"
        )
    _record_inputs(run, pixels, encoder)
    trunk_outputs = TrunkOutputs(pixels=pixels, device=job.device)
    # Everything that the bits of the frozen embeddings depend on.
    recorded = {name: run.provenance[name] for name in ("made_from", "platform", "packages")}
    key = f"{recorded} {encoder} {describe_device(encoder.device)} {world_size()} processes"
    cached = None if run.has("frozen.npy") else read_cached("embeddings", key)
    if cached is not None:
        job.reporter.detail("embeddings of these images are in the cache")
        run.write_array("frozen", cached)
    if run.has("frozen.npy"):
        # Written before an interruption, or copied from the cache.
        stored = read_vectors(run.path / "frozen.npy", len(pixels))
        embeddings = torch.from_numpy(np.array(stored, dtype=np.float32)).to(job.device)
    else:
        embeddings = _embed_frozen(job, encoder, pixels, trunk_outputs)
        write_cached("embeddings", key, to_numpy(embeddings))
    if not run.has(THUMBNAILS):
        with job.reporter.progress("making thumbnails"):
            run.write_thumbnails(make_thumbnails(pixels))
    frozen = Representation(embeddings=embeddings, embed=lambda others: embed(others, encoder))
    return EmbeddedImages(collection=collection, frozen=frozen, trunk_outputs=trunk_outputs)


def _record_inputs(run: Run, pixels: Pixels, encoder: Encoder) -> None:
    """Record checksums of the pixels and weights; raise if those of a resumed run differ.

    This reads every pixel: 20 GB for 100,000 images of 256 x 256.
    """
    encoding = f"{encoder.input_format!r}, weights {digest_weights(encoder)}"
    inputs = {"images": pixels.checksum, "encoder": encoding}
    recorded = run.provenance.get("made_from")
    if recorded is None:
        # A run interrupted before this record may have left files made from other inputs.
        run.drop("frozen.npy", THUMBNAILS)
        run.note(made_from=inputs | {"engine": encoder.engine})
        return
    changed = [f"the {what}" for what, digest in inputs.items() if recorded.get(what) != digest]
    if changed:
        raise UsageError(
            f"{run.path}: cannot be resumed, because {' and '.join(changed)} changed after the run "
            "was started; restore what it was started with, or give --force to start over"
        )


def _embed_frozen(
    job: Job, encoder: Encoder, pixels: Pixels, trunk_outputs: TrunkOutputs
) -> torch.Tensor:
    """Return the frozen embeddings (N, D), computed in all processes, and write frozen.npy.

    The trunk's tokens are cached for training only if a resumed run would compute the same bits.
    This holds for OpenVINO, but with torch they may depend on the batch an image is in.
    """
    collector = None
    is_trained = any(each.is_trained for each in job.methods)
    if is_trained and encoder.engine != TORCH and world_size() == 1:
        collector = TokenCollector(len(pixels))
    broadcast(EMBEDDING, job.device)  # work for the other processes
    with job.reporter.progress(EMBEDDING, "images") as progress:
        frozen = embed(pixels, encoder, progress=progress, on_tokens=collector)
    check_directions((frozen == 0).all(dim=1), pixels.names, encoder.input_format.size)
    job.run.write_array("frozen", to_numpy(frozen))
    if collector is not None and collector.tokens is not None:
        chosen = job.settings.method_settings
        split = (chosen.encoder, job.methods[0].n_tail_blocks, chosen.input_size)
        trunk_outputs.tokens[split] = collector.tokens
    return frozen


def embed_collection(
    collection: Collection,
    encoder: str = DEFAULT_ENCODER,
    *,
    input_size: int | None = None,
    pixel_size: int = DiscoverySettings.pixel_size,
    device: AnyDevice = None,
    reporter: Reporter = LOGGED,
) -> tuple[Embeddings, dict[str, str]]:
    """Embed a collection with a frozen encoder; unreadable images are left out and listed.

    Embeddings of more than 1 GiB are in a memory map. Several processes share the work, and the
    main one returns all embeddings.
    """
    if is_main():
        report_collection(collection, reporter)
    network = load_encoder(encoder, input_size=input_size).to(choose_device(device))
    pixels = decode(collection, pixel_size, reporter)
    cache = cache_folder()
    n_rows = len(pixels) if is_main() else 0
    with writing(cache):
        x = scratch_array((n_rows, network.feature_dim), "float32", cache)
    is_zero = torch.zeros(len(pixels), dtype=torch.bool)
    with reporter.progress(EMBEDDING, "images") as progress:
        for rows, block in embed_blocks(pixels, network, progress=progress):
            is_zero[rows] = (block == 0).all(dim=1).cpu()
            if is_main():
                x[rows] = block.cpu().numpy()
    check_directions(is_zero, pixels.names, network.input_format.size)
    readable = collection.subset(pixels.index)
    embeddings = Embeddings(
        names=readable.names,
        x=x,
        labels=readable.labels,
        classes=readable.classes,
        rows=np.arange(len(readable)),
    )
    return embeddings, {**collection.left_out, **pixels.skipped}


def check_target(file: Path, *, force: bool) -> None:
    """Raise for a file that cannot or must not be written, before the work."""
    if file.suffix.lower() != ".npz":
        raise UsageError(f"{file}: expected the suffix .npz; rename it")
    check_writable(file, force=force)


def write_embeddings(embeddings: Embeddings, file: Path) -> None:
    """Write an npz with X, paths and, if some are labeled, y."""
    labels = {}
    if embeddings.classes:
        names = [*embeddings.classes, ""]  # the last one for UNLABELED
        labels["y"] = np.array([names[label] for label in embeddings.labels], dtype=np.str_)
    paths = np.array(embeddings.names, dtype=np.str_)
    with atomic_file(file) as out:
        np.savez(out, allow_pickle=False, X=embeddings.x, paths=paths, **labels)
