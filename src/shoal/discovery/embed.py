"""Embeddings of images as a file: `shoal embed`, for `shoal cluster` and for other programs.

N images, D columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from shoal.arrays import UNLABELED, Floats
from shoal.data.collection import Collection
from shoal.data.pixels import Skipped, load_pixels
from shoal.device import choose_device
from shoal.discovery.cache import bound_cache
from shoal.discovery.progress import Outlook
from shoal.discovery.readable import tell_found
from shoal.discovery.reporter import Reporter
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import check_directions, embed
from shoal.errors import UsageError, missing_package
from shoal.files import atomic_file, check_writable

PIXEL_SIZE = 256
"""Side at which decoded images are kept, the same as in `shoal discover`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedded:
    """The readable images of a collection, and their embeddings in the same order."""

    collection: Collection
    x: Floats
    """(N, D), unit rows."""
    skipped: tuple[Skipped, ...]

    @property
    def labels(self) -> list[str]:
        """(N,) class names, '' for unlabeled."""
        found = self.collection
        return ["" if label == UNLABELED else found.classes[label] for label in found.labels]


def embed_collection(
    collection: Collection,
    encoder: str = DEFAULT_ENCODER,
    *,
    input_size: int | None = None,
    pixel_size: int = PIXEL_SIZE,
    device: str | torch.device | None = None,
    reporter: Reporter | None = None,
) -> Embedded:
    """Embed a collection with an encoder as it comes; images that cannot be read are left out and listed."""
    reporter = reporter or Reporter()
    tell_found(collection, pixel_size, reporter)
    network = load_encoder(encoder, input_size=input_size).to(choose_device(device))
    with reporter.progress("decoding images", Outlook("images")) as progress:
        pixels = load_pixels(collection, pixel_size, progress=progress)
    if collection.root is not None:
        bound_cache(collection.root, pixel_size)
    with reporter.progress("embedding images", Outlook("images")) as progress:
        x = embed(pixels, network, progress=progress)
    check_directions(x, pixels.names, network.input_format.size)
    return Embedded(collection=collection.subset(pixels.index), x=x.cpu().numpy(), skipped=pixels.skipped)


def check_target(file: Path, *, force: bool) -> None:
    """Refuse a file that cannot or must not be written, before the work."""
    if file.suffix.lower() not in WRITERS:
        raise UsageError(
            f"{file}: found the suffix {file.suffix or 'none'!r}, expected {', '.join(WRITERS)}; rename it"
        )
    if file.exists() and not force:
        raise UsageError(f"{file}: is there already; give --force to overwrite it, or another --out")
    check_writable(file)


def write_embeddings(found: Embedded, file: Path) -> None:
    """Write embeddings by suffix: npz with X, paths and, where some are labeled, y; parquet; npy with X alone."""
    WRITERS[file.suffix.lower()](found, file)


def _write_npz(found: Embedded, file: Path) -> None:
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {"X": found.x}
    arrays["paths"] = np.array(found.collection.names, dtype=np.str_)
    if found.collection.n_labeled:
        arrays["y"] = np.array(found.labels, dtype=np.str_)
    with atomic_file(file) as out:
        np.savez(out, allow_pickle=False, **arrays)


def _write_npy(found: Embedded, file: Path) -> None:
    with atomic_file(file) as out:
        np.save(SimpleNamespace(write=out.write), found.x, allow_pickle=False)


def _write_parquet(found: Embedded, file: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet", "writing parquet files") from error
    flat = pyarrow.array(np.ascontiguousarray(found.x).reshape(-1))
    columns = {
        "path": list(found.collection.names),
        "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, found.x.shape[1]),
    }
    if found.collection.n_labeled:
        columns["label"] = [label or None for label in found.labels]
    with atomic_file(file) as out:
        pyarrow.parquet.write_table(pyarrow.table(columns), out)


WRITERS: dict[str, Callable[[Embedded, Path], None]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".parquet": _write_parquet,
}
