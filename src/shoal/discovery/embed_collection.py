"""Embeddings of images as a file: `shoal embed`, for `shoal cluster` and for other programs.

Shapes: N images, D columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from shoal.arrays import Floats
from shoal.data.collection import Collection
from shoal.data.pixels import Skipped
from shoal.device import AnyDevice, choose_device
from shoal.discovery.reporter import EMBEDDING, LOGGED, Reporter
from shoal.discovery.run_job import decode, report_collection
from shoal.distributed import is_main
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import check_directions, embed_blocks
from shoal.errors import UsageError, missing_package
from shoal.files import atomic_file, cache_folder, check_writable, scratch_array, writing

DTYPES = ("float32", "float16")
"""Types of stored embeddings; float16 takes half the disk, and changes each value by 0.05 % at
most."""

PARQUET_ROWS = 65_536
"""Rows of a parquet file that are encoded at a time."""

PIXEL_SIZE = 256
"""Side of the decoded images in the cache, the same as in `shoal discover`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedded:
    """The readable images of a collection, and their embeddings in the same order."""

    collection: Collection
    x: Floats
    """(N, D), unit rows; (0, D) in a process that is not the main one."""
    skipped: tuple[Skipped, ...]

    @property
    def labels(self) -> list[str]:
        """(N,) class names, '' for unlabeled."""
        names = [*self.collection.classes, ""]  # the last one for UNLABELED
        return [names[label] for label in self.collection.labels]


def embed_collection(
    collection: Collection,
    encoder: str = DEFAULT_ENCODER,
    *,
    input_size: int | None = None,
    pixel_size: int = PIXEL_SIZE,
    dtype: str = "float32",
    device: AnyDevice = None,
    reporter: Reporter = LOGGED,
) -> Embedded:
    """Embed a collection with a frozen encoder; unreadable images are left out and listed.

    Embeddings of more than 1 GiB are in a memory map. Several processes share the work, and the
    main one returns all embeddings.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype: found {dtype!r}, expected {' or '.join(DTYPES)}")
    if is_main():
        report_collection(collection, pixel_size, reporter)
    network = load_encoder(encoder, input_size=input_size).to(choose_device(device))
    pixels = decode(collection, pixel_size, reporter)
    cache = cache_folder()
    n_rows = len(pixels) if is_main() else 0
    with writing(cache):
        x: Floats = scratch_array((n_rows, network.feature_dim), dtype, cache)
    is_zero = torch.zeros(len(pixels), dtype=torch.bool)
    with reporter.progress(EMBEDDING, "images") as progress:
        for rows, block in embed_blocks(pixels, network, progress=progress):
            is_zero[rows] = (block == 0).all(dim=1).cpu()
            if is_main():
                x[rows] = block.cpu().numpy()
    check_directions(is_zero, pixels.names, network.input_format.size)
    skipped = (*(Skipped(*left_out) for left_out in collection.left_out), *pixels.skipped)
    return Embedded(collection=collection.subset(pixels.index), x=x, skipped=skipped)


def check_target(file: Path, *, force: bool) -> None:
    """Raise for a file that cannot or must not be written, before the work."""
    if file.suffix.lower() not in WRITERS:
        raise UsageError(
            f"{file}: found the suffix {file.suffix or 'none'!r}, expected {', '.join(WRITERS)}; "
            "rename it"
        )
    check_writable(file, force=force)


def write_embeddings(embedded: Embedded, file: Path) -> None:
    """Write embeddings by suffix: npz with X, paths and, if some are labeled, y; parquet; npy
    with X alone."""
    WRITERS[file.suffix.lower()](embedded, file)


def _write_npz(embedded: Embedded, file: Path) -> None:
    paths = np.array(embedded.collection.names, dtype=np.str_)
    labels = {}
    if embedded.collection.n_labeled:
        labels["y"] = np.array(embedded.labels, dtype=np.str_)
    with atomic_file(file) as out:
        np.savez(out, allow_pickle=False, X=embedded.x, paths=paths, **labels)


def _write_npy(embedded: Embedded, file: Path) -> None:
    with atomic_file(file) as out:
        # Given the file itself, numpy would report a full disk without its errno.
        np.save(SimpleNamespace(write=out.write), embedded.x, allow_pickle=False)


def _write_parquet(embedded: Embedded, file: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "writing parquet files") from error
    vectors = pyarrow.array(embedded.x.reshape(-1))
    columns = {
        "path": list(embedded.collection.names),
        "embedding": pyarrow.FixedSizeListArray.from_arrays(vectors, embedded.x.shape[1]),
    }
    if embedded.collection.n_labeled:
        columns["label"] = [label or None for label in embedded.labels]
    with atomic_file(file) as out:
        pyarrow.parquet.write_table(pyarrow.table(columns), out, row_group_size=PARQUET_ROWS)


WRITERS: dict[str, Callable[[Embedded, Path], None]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".parquet": _write_parquet,
}
