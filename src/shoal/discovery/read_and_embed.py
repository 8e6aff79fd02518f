"""The first stage: images are read, embedded by the encoder as it comes, and made small for reports.

Images are decoded once; those that cannot be are listed. An interrupted run finds the embeddings again. They belong to
certain pixels and certain weights, which provenance.json names before the first embedding is made: a run that would go
on with others is refused.
"""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from shoal.arrays import each_row
from shoal.clustering.n_clusters import check_estimable, check_n_clusters
from shoal.clustering.sums import ROWS_AT_ONCE
from shoal.data.collection import Collection, check_for_discovery
from shoal.data.pixels import Pixels, available_cpus, check_headers, load_pixels
from shoal.device import computing_device
from shoal.discovery.cache import bound_cache
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import SILENT, Reporter
from shoal.distributed import flag_from_main, world_size
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import check_directions, embed
from shoal.encoders.engines import TORCH, check_engine
from shoal.encoders.vision import Encoder, digest_weights
from shoal.errors import DataError, MissingError, ShoalError, UsageError
from shoal.methods.clusters import Representation, to_numpy
from shoal.runs import Run, Skip, damaged, drop_thumbnails
from shoal.training.tokens import TokenCache, TokenKeeper

EMBEDDING = "embedding images"

THUMBNAIL_SIDE = 64
"""Pixels along a side of a thumbnail, which a report shows: it needs nothing but the run folder."""

WEBP_EFFORT = 2
"""How hard WebP looks for a smaller file, from 0 to 6: at this size 4 takes twice as long and saves 2 %."""

N_AT_ONCE = 1024
"""Images handed to the threads at once."""

Check = Callable[[Collection, DiscoverySettings], None]
"""Refuses a collection that is not enough."""


@dataclass(frozen=True, eq=False)
class Readable:
    """The images that could be decoded; rows of `pixels` are those of `collection`."""

    collection: Collection
    pixels: Pixels


def check_collection(collection: Collection, settings: DiscoverySettings) -> None:
    """Refuse now what could only fail later, after decoding and embedding."""
    if settings.n_clusters is None:
        check_for_discovery(collection)
        inference = settings.of_method.inference
        check_estimable(inference.min_clusters, inference.max_clusters, collection.labels)
    else:
        check_n_clusters(settings.n_clusters, collection.labels, len(collection))
    n_neighbors = settings.shift.n_neighbors
    if len(collection) <= n_neighbors:
        raise DataError(
            f"{collection.count()}: a mean over {n_neighbors} neighbors needs more than {n_neighbors} images, "
            f"found {len(collection)}; add images, or lower inference.shift.n_neighbors"
        )


def drop_unreadable(collection: Collection, pixel_size: int) -> tuple[Collection, int]:
    """The images whose first bytes are those of one, and how many others there are; decoding may find more of these.

    Where there is none, all of them are given back.
    """
    broken = {image.name for image in check_headers(collection, pixel_size)}
    if not broken or len(broken) == len(collection):
        return collection, len(broken)
    return collection.subset(np.array([name not in broken for name in collection.names])), len(
        broken
    )


def tell_found(collection: Collection, pixel_size: int, reporter: Reporter) -> list[str]:
    """Say how many images there are, how they were read, and what is strange about them; returns the lines."""
    readable, n_unreadable = drop_unreadable(collection, pixel_size)
    lines = readable.describe(n_unreadable=n_unreadable).splitlines()
    for line in lines:
        reporter.say(line)
    return lines


def decode(
    collection: Collection, settings: DiscoverySettings, reporter: Reporter | None = None
) -> Readable:
    """Decode a collection, or find it decoded."""
    reporter = reporter or Reporter()
    with reporter.progress("decoding images", "images") as progress:
        pixels = load_pixels(collection, settings.pixel_size, progress=progress)
    return Readable(collection.subset(pixels.index) if pixels.skipped else collection, pixels)


def check_decodable(
    collection: Collection,
    settings: DiscoverySettings,
    reporter: Reporter,
    check: Check = check_collection,
) -> None:
    """Decode a collection, and refuse it where too few images can be: such must not cost a run that is there."""
    check_readable(decode(collection, settings, reporter), settings, check)


def check_readable(
    images: Readable, settings: DiscoverySettings, check: Check = check_collection
) -> None:
    """Refuse a collection of which too few images could be decoded, as `check` would."""
    skipped = images.pixels.skipped
    if not skipped:
        return
    try:
        check(images.collection, settings)
    except ShoalError as error:
        first = skipped[0]
        raise DataError(
            f"{error} ({len(skipped):,} unreadable, such as {first.name}: {first.reason})"
        ) from error


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
        return images, embed_frozen(images, run, encoder, reporter, is_trained=settings.is_trained)
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
            reporter.say(
                f"note: {gone.folder} was deleted, because the cache of decoded images had grown too large"
            )
    skipped = images.pixels.skipped
    if skipped:
        check_readable(images, settings, check)
    if skipped or collection.left_out:
        broken = [(image.name, image.reason) for image in skipped]
        run.write_skipped(
            Skip(path=path, reason=reason)
            for path, reason in sorted([*broken, *collection.left_out])
        )
        reporter.say(
            f"{images.collection.count(n_unreadable=len(skipped))}, listed in {run.path / 'skipped.csv'}"
        )
    return images


def record_inputs(run: Run, images: Readable, encoder: Encoder) -> None:
    """Write down the pixels and the weights that a run is made from; other ones than it was begun with are refused.

    Every pixel is read: 20 GB for 100,000 images of 256 x 256.
    """
    encoding = f"{encoder.input_format!r}, weights {digest_weights(encoder)}"
    inputs = {"images": images.pixels.checksum, "encoder": encoding}
    before = run.provenance.get("made_from")
    if before is None:
        run.drop("frozen.npy")
        drop_thumbnails(run.path)  # nobody knows what they were made from
        run.note(made_from=inputs | {"engine": encoder.engine})
        return
    changed = [f"the {what}" for what, digest in inputs.items() if before.get(what) != digest]
    if changed:
        raise UsageError(
            f"{run.path}: cannot be resumed, because {' and '.join(changed)} changed after the run was started; "
            "bring back what was there, or give --force to start over"
        )


def engine_of(run: Run) -> str | None:
    """The engine that an interrupted or stopped run was begun with, and goes on with; None where nothing was begun."""
    if not run.has("provenance.json") or (run.is_finished and not run.is_stopped):
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


def embed_frozen(
    images: Readable, run: Run, encoder: Encoder, reporter: Reporter, *, is_trained: bool = False
) -> Representation:
    """The embeddings of the encoder as it comes; an interrupted run has them already.

    Where it will be trained, the trunk's tokens are kept, if they are the same bits as those of a resumed run: an
    engine's do not depend on the batch that an image is in, and torch's may.
    """
    keeper = None
    is_there = run.has("frozen.npy")
    broadcast_embedding(not is_there, computing_device(encoder.device))
    if is_there:
        frozen = _read_frozen(run, len(images.collection), computing_device(encoder.device))
    else:
        if is_trained and encoder.engine != TORCH and world_size() == 1:
            keeper = TokenKeeper(len(images.pixels))
        with reporter.progress(EMBEDDING, "images") as progress:
            frozen = embed(images.pixels, encoder, progress=progress, on_tokens=keeper)
        check_directions((frozen == 0).all(dim=1), images.pixels.names, encoder.input_format.size)
        run.write_array("frozen", to_numpy(frozen))
    if not run.has_thumbnails:
        with reporter.progress("making thumbnails"):
            run.write_thumbnails(make_thumbnails(images.pixels), len(images.pixels))
    tokens = (
        None if keeper is None or keeper.tokens is None else TokenCache(keeper.tokens, batch_size=1)
    )
    return Representation(
        embeddings=frozen, embed=lambda pixels: embed(pixels, encoder), tokens=tokens
    )


def _read_frozen(run: Run, n_images: int, device: torch.device) -> torch.Tensor:
    """What an interrupted run has kept, brought to the device block by block."""
    kept = run.array("frozen")
    is_whole = kept.ndim == 2 and len(kept) == n_images and kept.dtype == np.float32
    if not is_whole or not each_row(kept, lambda rows: np.isfinite(rows).all(axis=1)).all():
        what = f"found {kept.dtype} of shape {kept.shape}, expected finite float32, a row per image"
        raise damaged(run.path / "frozen.npy", what)
    frozen = torch.empty(kept.shape, device=device)
    for start in range(0, n_images, ROWS_AT_ONCE):
        frozen[start : start + ROWS_AT_ONCE] = torch.from_numpy(
            np.array(kept[start : start + ROWS_AT_ONCE])
        )
    return frozen


def broadcast_embedding(is_wanted: bool, device: torch.device) -> None:
    """Say to the other processes, which wait in `share_embedding`, whether images are embedded."""
    flag_from_main(is_wanted, device)


def share_embedding(
    collection: Collection, settings: DiscoverySettings, device: torch.device
) -> None:
    """Embed what the main process embeds, in another one, when that has said whether it does."""
    chosen = settings.of_method
    if flag_from_main(False, device):
        encoder = load_encoder(chosen.encoder, input_size=chosen.input_size).to(device)
        embed(decode(collection, settings, SILENT).pixels, encoder)


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
