"""CIFAR-10 and CIFAR-100 from their binary version: records of label bytes and 32 x 32 x 3 pixel
bytes.

The Python version of the same download is a set of pickles, which are never opened here.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.data.benchmarks.official_images import OfficialImages, Part
from shoal.data.benchmarks.split import ClassSplit
from shoal.errors import DataError

SIDE = 32
N_PIXEL_BYTES = 3 * SIDE * SIDE

CIFAR10_FILES: dict[Part, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
CIFAR100_FILES: dict[Part, tuple[str, ...]] = {"train": ("train.bin",), "test": ("test.bin",)}


def read_cifar10(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read the five training batches one after the other, or the test batch; one label byte per
    record."""
    return _read([home / file for file in CIFAR10_FILES[part]], part, split, n_label_bytes=1)


def read_cifar100(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read train.bin or test.bin; the first label byte is the coarse class, the second the fine
    one, which counts."""
    return _read([home / file for file in CIFAR100_FILES[part]], part, split, n_label_bytes=2)


def _read(
    files: list[Path], part: Part, split: ClassSplit, *, n_label_bytes: int
) -> OfficialImages:
    records = np.concatenate([_records(file, n_label_bytes + N_PIXEL_BYTES) for file in files])
    class_ids = records[:, n_label_bytes - 1].astype(np.int64)
    if class_ids.max() >= split.n_classes:
        raise DataError(
            f"{files[0].parent}: found label {class_ids.max()}, expected 0 to "
            f"{split.n_classes - 1}; "
            "these are not the files of this benchmark"
        )
    names = tuple(f"{part}-{i:05d}" for i in range(len(records)))
    assert split.class_names is not None
    images = _as_images(records[:, n_label_bytes:])
    return OfficialImages(
        names, class_ids, split.class_names, "the official binary version", images=images
    )


def _records(file: Path, n_bytes: int) -> NDArray[np.uint8]:
    size = file.stat().st_size
    if size == 0 or size % n_bytes:
        raise DataError(
            f"{file}: found {size:,} bytes, expected a whole number of records of {n_bytes:,} "
            "bytes; "
            "the file is cut off or of another kind: download the binary version again"
        )
    return np.fromfile(file, dtype=np.uint8).reshape(-1, n_bytes)


def _as_images(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    planes = pixels.reshape(-1, 3, SIDE, SIDE)  # red, green, blue, each row by row
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))  # (N, 32, 32, 3)
