"""The embeddings of the encoder as it comes: images are read, embedded, and made small for reports.

An interrupted run finds them again. They belong to certain pixels and certain weights, which provenance.json names
before the first embedding is made: a run that would go on with others is refused.
"""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image

from shoal.arrays import each_row
from shoal.clustering.iterates import ROWS_AT_ONCE
from shoal.data.collection import Collection
from shoal.data.pixels import Pixels, available_cpus
from shoal.device import computing_device
from shoal.discovery.broadcast import broadcast_embedding
from shoal.discovery.cache import bound_cache
from shoal.discovery.embed import embed_with_progress
from shoal.discovery.readable import Check, Readable, check_collection, check_readable, decode
from shoal.discovery.reporter import Reporter
from shoal.discovery.settings import DiscoverySettings
from shoal.encoders.embed import check_directions, embed
from shoal.encoders.engines import TORCH
from shoal.encoders.vision import Encoder, digest_weights
from shoal.errors import ShoalError, UsageError
from shoal.methods.clusters import Representation, to_numpy
from shoal.runs import Run, Skip, damaged

THUMBNAIL_SIDE = 64
"""Pixels along a side of a thumbnail, which a report shows: it needs nothing but the run folder."""

WEBP_EFFORT = 2
"""How hard WebP looks for a smaller file, from 0 to 6: at this size 4 takes twice as long and saves 2 %."""

N_AT_ONCE = 1024
"""Images handed to the threads at once."""


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
        images = _read(run, collection, settings, reporter, check)
        record_inputs(run, images, encoder)
        return images, embed_frozen(images, run, encoder, reporter)
    except ShoalError as error:
        # A run that must not be resumed with other images may still be with its own.
        if not run.has("frozen.npy") and not (is_resumed and isinstance(error, UsageError)):
            run.abandon()
        raise


def _read(
    run: Run,
    collection: Collection,
    settings: DiscoverySettings,
    reporter: Reporter,
    check: Check,
) -> Readable:
    """Decode a collection for a run, and list in it what cannot be; too few that can are an error."""
    images = decode(collection, settings, reporter)
    if collection.images is None:
        for gone in bound_cache(collection.where, settings.pixel_size):
            reporter.say(f"note: {gone.folder} was deleted, because the cache of decoded images had grown too large")
    skipped = images.pixels.skipped
    if skipped:
        check_readable(images, settings, check)
    if skipped or collection.left_out:
        broken = [(image.name, image.reason) for image in skipped]
        run.write_skipped(Skip(path=path, reason=reason) for path, reason in sorted([*broken, *collection.left_out]))
        reporter.say(f"{images.collection.count(n_unreadable=len(skipped))}, listed in {run.path / 'skipped.csv'}")
    return images


def record_inputs(run: Run, images: Readable, encoder: Encoder) -> None:
    """Write down the pixels and the weights that a run is made from; other ones than it was begun with are refused.

    Every pixel is read: 20 GB for 100,000 images of 256 x 256.
    """
    encoding = f"{encoder.input_format!r}, weights {digest_weights(encoder)}"
    found = {"images": images.pixels.checksum, "encoder": encoding}
    before = run.provenance.get("made_from")
    if before is None:
        run.drop("frozen.npy", "thumbnails.zip")  # nobody knows what they were made from
        run.note(made_from=found | {"engine": encoder.engine})
        return
    changed = [f"the {what}" for what, digest in found.items() if before.get(what) != digest]
    if changed:
        raise UsageError(
            f"{run.path}: cannot be resumed, because {' and '.join(changed)} changed after the run was started; "
            "bring back what was there, or give --force to start over"
        )


def engine_of(run: Run) -> str | None:
    """The engine that an interrupted run was begun with, and goes on with; None where nothing was begun."""
    if run.is_finished or not run.has("provenance.json"):
        return None
    made_from = run.provenance.get("made_from")
    return None if made_from is None else str(made_from.get("engine", TORCH))


def embed_frozen(images: Readable, run: Run, encoder: Encoder, reporter: Reporter) -> Representation:
    """The embeddings of the encoder as it comes; an interrupted run has them already."""
    is_there = run.has("frozen.npy")
    broadcast_embedding(not is_there, computing_device(encoder.device))
    if is_there:
        frozen = _read_frozen(run, len(images.collection), computing_device(encoder.device))
    else:
        frozen = embed_with_progress(images.pixels, encoder, reporter)
        check_directions((frozen == 0).all(dim=1), images.pixels.names, encoder.input_format.size)
        run.write_array("frozen", to_numpy(frozen))
    if not run.has("thumbnails.zip"):
        with reporter.progress("making thumbnails"):
            run.write_thumbnails(make_thumbnails(images.pixels))
    return Representation(embeddings=frozen, embed=lambda pixels: embed(pixels, encoder))


def _read_frozen(run: Run, n_images: int, device: torch.device) -> torch.Tensor:
    """What an interrupted run has kept, brought to the device block by block."""
    kept = run.array("frozen")
    is_whole = kept.ndim == 2 and len(kept) == n_images and kept.dtype == np.float32
    if not is_whole or not each_row(kept, lambda rows: np.isfinite(rows).all(axis=1)).all():
        what = f"found {kept.dtype} of shape {kept.shape}, expected finite float32, a row per image"
        raise damaged(run.path / "frozen.npy", what)
    frozen = torch.empty(kept.shape, device=device)
    for start in range(0, n_images, ROWS_AT_ONCE):
        frozen[start : start + ROWS_AT_ONCE] = torch.from_numpy(np.array(kept[start : start + ROWS_AT_ONCE]))
    return frozen


def make_thumbnails(pixels: Pixels) -> Iterator[bytes]:
    """The images as small WebP files, in their order; pictures smaller than a thumbnail keep their size."""

    def make(row: int) -> bytes:
        image = Image.fromarray(pixels[row])
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "WEBP", quality=80, method=WEBP_EFFORT)
        return file.getvalue()

    with ThreadPoolExecutor(
        available_cpus()
    ) as threads:  # Pillow lets go of the interpreter while it scales and writes
        for start in range(0, len(pixels), N_AT_ONCE):
            yield from threads.map(make, range(start, min(start + N_AT_ONCE, len(pixels))))
