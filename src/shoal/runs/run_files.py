"""Reading the files of a run.

People edit them and disks damage them, so every error names the file, the line and a remedy.
`reading` converts exceptions to such errors.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import archive_arrays, name_rows, unusable_rows
from shoal.errors import DataError
from shoal.settings import Plain
from shoal.words import one_line


@contextmanager
def reading(file: Path, line: int | None = None) -> Iterator[None]:
    """Convert exceptions while reading a file of a run to errors that name file and remedy."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{file}: missing; is {file.parent} the folder of a run?") from error
    except Exception as error:  # readers raise anything for a damaged file
        found = one_line(error, 300).replace(f"{file}: ", "")
        reason = f"cannot be read ({found})"
        # NumPy would advise allow_pickle=True, which is unsafe
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = "not an array of numbers or strings"
        raise damaged(file, reason, line) from error


def damaged(file: Path, reason: str, line: int | None = None) -> DataError:
    at_line = "" if line is None else f", line {line}"
    return DataError(
        f"{file}{at_line}: damaged or edited, {reason}; restore a copy, or run again with --force"
    )


def read_text(file: Path) -> str:
    with reading(file):
        return file.read_bytes().decode("utf-8-sig")


def read_object(file: Path) -> Plain:
    return _parsed(read_text(file), file)


def read_objects(file: Path) -> list[Plain]:
    """Read a JSON object per line."""
    lines = enumerate(read_text(file).splitlines(), start=1)
    return [_parsed(line, file, number) for number, line in lines]


def _parsed(text: str, file: Path, line: int | None = None) -> Plain:
    with reading(file, line):
        content = json.loads(text)
    if not isinstance(content, dict):
        raise damaged(file, f"found {content!r:.60}, expected an object with keys", line)
    return content


def read_array(file: Path) -> NDArray[Any]:
    """Map an array into memory, read-only."""
    with reading(file):
        return np.lib.format.open_memmap(file, mode="r")


def read_vectors(file: Path, n_rows: int) -> NDArray[Any]:
    """Map the embeddings of a run into memory: (N, D), finite, no row all zeros."""
    vectors = read_array(file)
    is_matrix = vectors.ndim == 2 and vectors.dtype.kind == "f" and vectors.shape[1] > 0
    if not is_matrix or len(vectors) != n_rows:
        raise damaged(
            file,
            f"found {vectors.dtype} of shape {vectors.shape}, expected a row of numbers for each "
            f"of {n_rows:,} images in assignments.csv",
        )
    is_bad = unusable_rows(vectors)
    if is_bad.any():
        raise damaged(file, f"found NaN, infinity or only zeros in {name_rows(is_bad)}")
    return vectors


def read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    with reading(file), np.load(file, allow_pickle=False) as archive:
        return archive_arrays(archive)
