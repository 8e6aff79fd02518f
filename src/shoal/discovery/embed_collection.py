"""Embeddings of images as a file: `shoal embed`, for `shoal cluster` and for other programs.

Shapes: N images, D columns.
"""

from pathlib import Path

import numpy as np
import torch

from shoal.data.collection import Collection
from shoal.data.readers.embeddings import Embeddings
from shoal.device import AnyDevice, choose_device
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.reporter import EMBEDDING, LOGGED, Reporter
from shoal.discovery.run_job import decode, report_collection
from shoal.distributed import is_main
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import check_directions, embed_blocks
from shoal.errors import UsageError
from shoal.files import atomic_file, cache_folder, check_writable, scratch_array, writing


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
