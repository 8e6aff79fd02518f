"""The first stage of a job: images are decoded, embedded by the frozen encoder, and made small for
reports.

Images that cannot be decoded are listed. A resumed run finds its embeddings again. They belong to
certain pixels and weights, which provenance.json names before the first embedding is made: other
ones are refused.
"""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image

from shoal.arrays import each_row
from shoal.clustering.sums import ROWS_AT_ONCE
from shoal.data.collection import Collection
from shoal.data.pixels import Pixels, available_cpus, check_headers, load_pixels
from shoal.discovery.cache import bound_cache
from shoal.discovery.job import EmbeddedImages, Job
from shoal.discovery.reporter import Reporter
from shoal.distributed import flag_from_main, is_main, object_from_main, world_size
from shoal.encoders.embed import check_directions, embed
from shoal.encoders.engines import TORCH, check_engine
from shoal.encoders.vision import Encoder, digest_weights
from shoal.errors import DataError, MissingError, ShoalError, UsageError
from shoal.methods.clusters import Representation, to_numpy
from shoal.methods.trunk import Trunk
from shoal.runs import Run, Skip, damaged, drop_thumbnails
from shoal.training.tokens import TokenKeeper

EMBEDDING = "embedding images"

THUMBNAIL_SIDE = 64
"""Pixels along a side of a thumbnail, which a report shows: it needs nothing but the run folder."""

WEBP_EFFORT = 2
"""How hard WebP looks for a smaller file, from 0 to 6: at this size 4 takes twice as long and saves
2 %."""

N_AT_ONCE = 1024
"""Images handed to the threads at once."""


def drop_unreadable(collection: Collection, pixel_size: int) -> tuple[Collection, int]:
    """The images whose first bytes are those of one, and how many others there are.

    Decoding may find more of these. Where there is no image at all, all of them are given back.
    """
    broken = {image.name for image in check_headers(collection, pixel_size)}
    if not broken or len(broken) == len(collection):
        return collection, len(broken)
    is_whole = np.array([name not in broken for name in collection.names])
    return collection.subset(is_whole), len(broken)


def tell_found(collection: Collection, pixel_size: int, reporter: Reporter) -> list[str]:
    """Say how many images there are, how they were read, and what is strange about them."""
    readable, n_unreadable = drop_unreadable(collection, pixel_size)
    lines = readable.describe(n_unreadable=n_unreadable).splitlines()
    for line in lines:
        reporter.say(line)
    return lines


def check_rest(job: Job, readable: Collection, unreadable: str) -> None:
    """Refuse a job whose images are too few without the unreadable ones."""
    try:
        job.check(readable)
    except ShoalError as error:
        raise DataError(f"{error} ({unreadable})") from error


def decode(job: Job) -> Pixels:
    """Decode the images of a job, or find them decoded; too few of them are refused."""
    collection = job.collection
    size = job.settings.pixel_size
    with job.reporter.progress("decoding images", "images") as progress:
        pixels = load_pixels(collection, size, progress=progress)
    skipped = pixels.skipped
    if skipped:
        first = f"such as {skipped[0].name}: {skipped[0].reason}"
        readable = collection.subset(pixels.index)
        check_rest(job, readable, f"{len(skipped):,} unreadable, {first}")
    if collection.images is None and is_main():
        for gone in bound_cache(collection.where, size):
            why = "because the cache of decoded images had grown too large"
            job.reporter.say(f"note: {gone.folder} was deleted, {why}")
    return pixels


def embed_images(job: Job, pixels: Pixels, encoder: Encoder) -> EmbeddedImages:
    """Embed the decoded images of a run that is begun.

    Where that fails before the first embedding is kept, no run is left behind.
    """
    run = job.run
    collection = job.collection
    if pixels.skipped:
        collection = collection.subset(pixels.index)
    is_resumed = run.provenance.get("made_from") is not None
    try:
        _list_skipped(job, pixels, collection)
        record_inputs(run, pixels, encoder)
        frozen, trunk = _embed_frozen(job, pixels, encoder)
    except ShoalError as error:
        # A run that must not be resumed with other images may still be with its own.
        if not run.has("frozen.npy") and not (is_resumed and isinstance(error, UsageError)):
            run.abandon()
        raise
    if not run.has_thumbnails:
        with job.reporter.progress("making thumbnails"):
            run.write_thumbnails(make_thumbnails(pixels), len(pixels))
    learned = Representation(embeddings=frozen, embed=lambda others: embed(others, encoder))
    return EmbeddedImages(collection=collection, pixels=pixels, frozen=learned, trunk=trunk)


def _list_skipped(job: Job, pixels: Pixels, readable: Collection) -> None:
    broken = [(image.name, image.reason) for image in pixels.skipped]
    left_out = [*broken, *job.collection.left_out]
    if left_out:
        job.run.write_skipped(Skip(path=path, reason=reason) for path, reason in sorted(left_out))
        counted = readable.count(n_unreadable=len(broken))
        job.reporter.say(f"{counted}, listed in {job.run.path / 'skipped.csv'}")


def record_inputs(run: Run, pixels: Pixels, encoder: Encoder) -> None:
    """Write down the pixels and the weights that a run is made from; other ones than it was begun
    with are refused.

    Every pixel is read: 20 GB for 100,000 images of 256 x 256.
    """
    encoding = f"{encoder.input_format!r}, weights {digest_weights(encoder)}"
    inputs = {"images": pixels.checksum, "encoder": encoding}
    before = run.provenance.get("made_from")
    if before is None:
        run.drop("frozen.npy")
        drop_thumbnails(run.path)  # nobody knows what they were made from
        run.note(made_from=inputs | {"engine": encoder.engine})
        return
    changed = [f"the {what}" for what, digest in inputs.items() if before.get(what) != digest]
    if changed:
        raise UsageError(
            f"{run.path}: cannot be resumed, because {' and '.join(changed)} changed after the run "
            "was started; bring back what was there, or give --force to start over"
        )


def engine_of(run: Run) -> str | None:
    """The engine that an interrupted or stopped run was begun with, and goes on with."""
    if not run.has("provenance.json") or run.is_complete:
        return None
    made_from = run.provenance.get("made_from")
    if made_from is None:
        return None
    engine = str(made_from.get("engine", TORCH))
    try:
        check_engine(engine)
    except MissingError as error:
        raise MissingError(
            f"{run.path}: was begun with the {error}; or give --force to start over"
        ) from error
    return engine


def _embed_frozen(job: Job, pixels: Pixels, encoder: Encoder) -> tuple[torch.Tensor, Trunk]:
    """(N, D) by the frozen encoder, and what its trunk has computed; a resumed run has the former
    already.

    Where something will be trained, the trunk's tokens are kept, if they are the same bits as
    those of a resumed run: an engine's do not depend on the batch that an image is in, and
    torch's may.
    """
    run = job.run
    trunk = new_trunk(job, pixels)
    if run.has("frozen.npy"):
        return _read_frozen(run, len(pixels), job.device), trunk
    keeper = None
    is_trained = any(each.is_trained for each in job.methods)
    if is_trained and encoder.engine != TORCH and world_size() == 1:
        keeper = TokenKeeper(len(pixels))
    flag_from_main(True, job.device)
    object_from_main(None, job.device)  # which says to the others: embed
    with job.reporter.progress(EMBEDDING, "images") as progress:
        frozen = embed(pixels, encoder, progress=progress, on_tokens=keeper)
    check_directions((frozen == 0).all(dim=1), pixels.names, encoder.input_format.size)
    run.write_array("frozen", to_numpy(frozen))
    if keeper is not None and keeper.tokens is not None:
        chosen = job.settings.of_method
        split = (chosen.encoder, job.methods[0].n_tail_blocks, chosen.input_size)
        trunk.tokens[split] = keeper.tokens
    return frozen, trunk


def new_trunk(job: Job, pixels: Pixels) -> Trunk:
    """What the trunk computes for the trainings of a job."""
    return Trunk(pixels=pixels, device=job.device)


def _read_frozen(run: Run, n_images: int, device: torch.device) -> torch.Tensor:
    """What an interrupted run has kept, brought to the device block by block."""
    kept = run.array("frozen")
    is_whole = kept.ndim == 2 and len(kept) == n_images and kept.dtype == np.float32
    if not is_whole or not each_row(kept, lambda rows: np.isfinite(rows).all(axis=1)).all():
        what = f"found {kept.dtype} of shape {kept.shape}, expected finite float32, a row per image"
        raise damaged(run.path / "frozen.npy", what)
    frozen = torch.empty(kept.shape, device=device)
    for start in range(0, n_images, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        frozen[rows] = torch.from_numpy(np.array(kept[rows]))
    return frozen


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """The images as small WebP files, in their order; pictures smaller than a thumbnail keep their
    size."""

    def make(row: int) -> bytes:
        image = Image.fromarray(pixels[row])
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=80, method=WEBP_EFFORT)
        return file.getvalue()

    # Pillow lets go of the interpreter while it scales and writes.
    with ThreadPoolExecutor(available_cpus()) as threads:
        for start in range(0, len(pixels), N_AT_ONCE):
            yield from threads.map(make, range(start, min(start + N_AT_ONCE, len(pixels))))
