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
from shoal.data.pixels import Pixels, Skipped, load_pixels
from shoal.device import encoder_device
from shoal.discovery.cache import bound_cache
from shoal.discovery.read_and_embed import EMBEDDING, tell_found
from shoal.discovery.reporter import Reporter
from shoal.distributed import is_main
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import check_directions, embed_blocks, move_encoder
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError, missing_package
from shoal.files import atomic_file, cache_folder, check_writable, scratch_array, writing

DTYPES = ("float32", "float16")
"""Numbers in which embeddings are kept; float16 takes half the disk, and moves each by 0.05 % at
most."""

ROWS_AT_ONCE = 65_536
"""Rows of a parquet file that are held while it is written."""

PIXEL_SIZE = 256
"""Side at which decoded images are kept, the same as in `shoal discover`."""


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
        collection = self.collection
        return [
            "" if label == UNLABELED else collection.classes[label] for label in collection.labels
        ]


def embed_collection(
    collection: Collection,
    encoder: str = DEFAULT_ENCODER,
    *,
    input_size: int | None = None,
    pixel_size: int = PIXEL_SIZE,
    dtype: str = "float32",
    device: str | torch.device | None = None,
    reporter: Reporter | None = None,
) -> Embedded:
    """Embed a collection with an encoder as it comes; images that cannot be read are left out and
    listed.

    Embeddings are kept as float32 or float16, past 1 GiB in a mapped file, a block of rows at a
    time. Several processes share the work: those of a machine that decodes wait for it, all embed,
    and the main one gets everything.
    """
    check_dtype(dtype)
    reporter = reporter or Reporter()
    if is_main():
        tell_found(collection, pixel_size, reporter)
    network = move_encoder(load_encoder(encoder, input_size=input_size), encoder_device(device))
    with reporter.progress("decoding images", "images") as progress:
        pixels = load_pixels(collection, pixel_size, progress=progress)
    if collection.images is None:
        bound_cache(collection.where, pixel_size)
    x = _embed_to_array(pixels, network, dtype, reporter)
    skipped = (*(Skipped(*one) for one in collection.left_out), *pixels.skipped)
    return Embedded(collection=collection.subset(pixels.index), x=x, skipped=skipped)


def check_dtype(dtype: str) -> None:
    """Refuse numbers that embeddings are not kept in."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype: found {dtype!r}, expected {' or '.join(DTYPES)}")


def _embed_to_array(pixels: Pixels, encoder: Encoder, dtype: str, reporter: Reporter) -> Floats:
    """(N, D) in the main process, in others (0, D); nowhere are they held whole in another form."""
    cache = cache_folder()
    shape = (len(pixels) if is_main() else 0, encoder.feature_dim)
    with writing(cache):
        x: Floats = scratch_array(shape, dtype, cache)
    is_zero = torch.zeros(len(pixels), dtype=torch.bool)
    with reporter.progress(EMBEDDING, "images") as progress:
        for rows, block in embed_blocks(pixels, encoder, progress=progress):
            is_zero[rows] = (block == 0).all(dim=1).cpu()
            if is_main():
                x[rows] = block.cpu().numpy()
    check_directions(is_zero, pixels.names, encoder.input_format.size)
    return x


def check_target(file: Path, *, force: bool) -> None:
    """Refuse a file that cannot or must not be written, before the work."""
    if file.suffix.lower() not in WRITERS:
        raise UsageError(
            f"{file}: found the suffix {file.suffix or 'none'!r}, expected {', '.join(WRITERS)}; "
            "rename it"
        )
    check_writable(file, force=force)


def write_embeddings(embedded: Embedded, file: Path) -> None:
    """Write embeddings by suffix: npz with X, paths and, where some are labeled, y; parquet; npy
    with X alone."""
    WRITERS[file.suffix.lower()](embedded, file)


def _write_npz(embedded: Embedded, file: Path) -> None:
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {"X": embedded.x}
    arrays["paths"] = np.array(embedded.collection.names, dtype=np.str_)
    if embedded.collection.n_labeled:
        arrays["y"] = np.array(embedded.labels, dtype=np.str_)
    with atomic_file(file) as out:
        np.savez(out, allow_pickle=False, **arrays)


def _write_npy(embedded: Embedded, file: Path) -> None:
    with atomic_file(file) as out:
        np.save(SimpleNamespace(write=out.write), embedded.x, allow_pickle=False)


def _write_parquet(embedded: Embedded, file: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "writing parquet files") from error
    value = pyarrow.from_numpy_dtype(embedded.x.dtype)
    fields = [("path", pyarrow.string()), ("embedding", pyarrow.list_(value, embedded.x.shape[1]))]
    labels = [label or None for label in embedded.labels] if embedded.collection.n_labeled else None
    schema = pyarrow.schema(fields if labels is None else [*fields, ("label", pyarrow.string())])
    with atomic_file(file) as out, pyarrow.parquet.ParquetWriter(out, schema) as writer:
        for start in range(0, len(embedded.x), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            flat = pyarrow.array(np.ascontiguousarray(embedded.x[part]).reshape(-1))
            columns = [
                list(embedded.collection.names[part]),
                pyarrow.FixedSizeListArray.from_arrays(flat, type=schema.types[1]),
            ]
            writer.write_table(
                pyarrow.table(
                    [*columns, *([] if labels is None else [labels[part]])], schema=schema
                )
            )


WRITERS: dict[str, Callable[[Embedded, Path], None]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".parquet": _write_parquet,
}
