"""How a run's files are read: people edit them and disks damage them, so every refusal names file,
line and remedy.

`reading` is the one place where what goes wrong becomes that sentence; everything here goes through
it.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shoal.arrays import DAMAGED, archive_arrays, each_row, name_rows
from shoal.errors import DataError, UsageError
from shoal.settings import Settings, convert, from_dict, show

OPTIONAL = (
    "metrics.jsonl",
    "estimate.json",
    "shifts.json",
    "accuracy.json",
    "calibration.json",
    "skipped.csv",
    "map.npz",
    "thumbnails.zip",
    "frozen.npy",
    "shifted.npy",
    "tree.npy",
    "checkpoint.safetensors",
)
"""Files of a run without which the rest can still be read."""

CAUSES = (*DAMAGED, LookupError, TypeError, RecursionError, csv.Error, yaml.YAMLError)
"""What the readers of these formats raise at a file that is not whole."""

Shape = Mapping[str, Any]
"""The type of each key of an object, as `settings.convert` takes it, or another shape; `(shape,
None)` may be missing."""

Pair = tuple[int, int]
Numbers = tuple[float, ...]
Counts = tuple[int, ...]

CURVE = {"confidence": Numbers, "right": Numbers, "n_images": Numbers}
SHAPES: dict[str, Shape] = {
    "provenance.json": {
        "finished": str | None,
        "started": str | None,
        "command": str | None,
        "device": str | None,
        "seed": int | None,
        "seconds": float | None,
        "root": str | None,
        "folders": tuple[str, ...] | None,
        "encoder": str | None,
        "fingerprint": str | None,
        "packages": dict | None,
        "made_from": dict | None,
        "answer": str | None,
        "stopped_early": ({"epochs": int, "of": int}, None),
        "trial_epochs": int | None,
    },
    "estimate.json": {
        "n_clusters": int,
        "rule": str | None,
        "is_given": bool | None,
        "curve": ({"n_clusters": Counts, "accuracy": Numbers}, None),
        "interval": Pair | None,
        "range": Pair | None,
        "by_labels": Pair | None,
    },
    "shifts.json": {
        "accuracies": tuple[float | None, ...] | None,
        "chosen": int | None,
        "n_neighbors": int | None,
    },
    "calibration.json": {
        "is_calibrated": bool,
        "label_rate": float | None,
        "weight": float | None,
        "scale": tuple[float | None, ...],
        "known": CURVE,
        "novel": CURVE,
        "labeled": CURVE,
    },
    "choice.json": {"kept": str, "n_images": int, "accuracy": {"frozen": float, "trained": float}},
    "model.json": {
        "frozen_weight": float,
        "n_tail_blocks": int | None,
        "classifier": Counts | None,
        "shape": ({"n_images": int, "n_known": int, "n_clusters": int | None}, None),
    },
    "accuracy.json": {
        "all": float | None,
        "known": float | None,
        "novel": float | None,
        "n_images": int | None,
        "n_classes": int | None,
        "categories": str | None,
    },
    "metrics.jsonl": {
        "epoch": int | None,
        "loss": float | None,
        "lr": float | None,
        "n_clusters": int | None,
        "loss_supervised": float | None,
        "loss_shifted": float | None,
        "loss_contrastive": float | None,
        "validation_accuracy": float | None,
    },
}
"""What the objects in a run's files look like, as far as anything here reads them; a key that may
be None may be missing."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file of a run is read into an error that names it, the line
    and the remedy."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{file}: not in this run; is {file.parent} the folder a run was written to?"
        ) from error
    except CAUSES as error:
        raise damaged(file, _reason(error), _line(error, file)) from error


class Damaged(DataError):
    """A file that cannot be used as it is; `what` says so without the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what


def damaged(file: Path, reason: str, line: int | None = None) -> Damaged:
    """The error for a file of a run that cannot be used as it is."""
    location = f"{file}"
    if line is not None:
        location += f", line {line}"
    remedy = "put back a copy of it"
    if re.sub(r"-\d{5}-of-\d{5}", "", file.name) in OPTIONAL:
        remedy = "delete it to do without it"
    return Damaged(
        f"{location}: damaged or edited, {reason}", f"{remedy}, or make the run again with --force"
    )


def read_text(file: Path) -> str:
    """Read UTF-8 text."""
    with reading(file):
        return file.read_bytes().decode("utf-8-sig")


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object that looks as `SHAPES` says."""
    text = read_text(file)
    with reading(file):
        return _fitting(json.loads(text), file)


def read_objects(file: Path) -> list[dict[str, Any]]:
    """Read a JSON object per line."""
    objects = []
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        try:
            objects.append(_fitting(json.loads(line), file, number))
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise damaged(file, _reason(error), number) from error
    return objects


def read_settings(file: Path) -> dict[str, Any]:
    """Read the keys and values of a YAML file."""
    text = read_text(file)
    with reading(file):
        settings = yaml.safe_load(text)
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise damaged(file, f"found {show(settings)}, expected settings by name")
    return settings


def read_settings_as(cls: type[Settings], file: Path) -> Settings:
    """Read the settings that a run was told, of which `cls` says the names and values."""
    try:
        return from_dict(cls, read_settings(file), where=str(file))
    except UsageError as error:  # nobody gave these settings now: the file is not as it was written
        reason = str(error).removeprefix(f"{file}: ")
        raise damaged(file, reason, _line_of_setting(reason, file)) from error


def read_array(file: Path) -> np.ndarray[Any, Any]:
    """Map an array into memory, read-only."""
    with reading(file):
        array: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays")
        return array


def read_vectors(file: Path, n_rows: int) -> np.ndarray[Any, Any]:
    """Map the embeddings of a run's images into memory: (N, D), finite, no row of zeros alone."""
    vectors = read_array(file)
    is_matrix = vectors.ndim == 2 and vectors.dtype.kind == "f" and vectors.shape[1] > 0
    if not is_matrix or len(vectors) != n_rows:
        raise damaged(
            file,
            f"found {vectors.dtype} of shape {vectors.shape}, expected numbers in a row for each "
            "of "
            f"{n_rows:,} images of assignments.csv",
        )
    is_bad = ~each_row(vectors, lambda rows: np.isfinite(rows).all(axis=1) & rows.any(axis=1))
    if is_bad.any():
        raise damaged(file, f"found NaN, infinity or only zeros in {name_rows(is_bad)}")
    return vectors


def read_arrays(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of an npz."""
    with reading(file), np.load(file, allow_pickle=False) as archive:
        return archive_arrays(archive)


def split_table(text: str, file: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV table and its rows, each with the line it begins on."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    begins = 1
    try:
        for row in reader:
            if row and not header:
                header = row
            elif row and len(row) != len(header):
                raise damaged(
                    file, f"found {len(row)} cells where the header has {len(header)}", begins
                )
            elif row:
                rows.append((begins, row))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise damaged(file, f"not valid CSV ({error})", begins) from error
    return header, rows


def table_columns(text: str, file: Path) -> tuple[list[str], list[Sequence[str]]]:
    """The header of a CSV table and its columns. One without quotes, as most are, is read in a
    third of the time."""
    if '"' not in text and "\r" not in text:
        lines = [line for line in text.split("\n") if line]
        header = lines[0].split(",") if lines else []
        n_cells = lines[0].count(",") + 1 if lines else 0
        is_even = all(line.count(",") + 1 == n_cells for line in lines)
        if is_even and max(map(len, lines), default=0) <= csv.field_size_limit():
            cells = ",".join(lines[1:]).split(",") if lines[1:] else []
            return header, [cells[at::n_cells] for at in range(n_cells)]
    header, rows = split_table(text, file)
    return header, list(zip(*(row for _, row in rows), strict=True)) or [()] * len(header)


def _fitting(content: Any, file: Path, line: int | None = None) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise damaged(file, f"found {show(content)}, expected an object with keys", line)
    try:
        for key, shape in SHAPES.get(file.name, {}).items():
            _check_shape(content.get(key), shape, key)
    except UsageError as error:
        raise damaged(file, str(error), line) from error
    return content


def _check_shape(value: Any, shape: Any, name: str) -> None:
    if isinstance(shape, tuple):  # a shape that may be missing
        if value is not None:
            _check_shape(value, shape[0], name)
    elif isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise UsageError(f"{name}: found {show(value)}, expected an object with keys")
        for key, each in shape.items():
            _check_shape(value.get(key), each, f"{name}.{key}")
    else:
        convert(shape, value, name)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte 0x{error.object[error.start]:02x})"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    # numpy advises to load these unsafely
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "not an array of numbers or texts"
    return f"cannot be read ({' '.join(str(error).split())[:120] or type(error).__name__})"


def _line(error: BaseException, file: Path) -> int | None:
    if isinstance(error, json.JSONDecodeError):
        return error.lineno
    if isinstance(error, UnicodeDecodeError) and file.suffix not in (".npy", ".npz", ".zip"):
        return bytes(error.object).count(b"\n", 0, error.start) + 1
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else int(mark.line) + 1


def _line_of_setting(reason: str, file: Path) -> int | None:
    """The line of a setting in YAML that a reason such as 'cms: input_size: found …' names, as far
    as it is there."""
    node = yaml.compose(read_text(file), Loader=yaml.SafeLoader)
    line = None
    for name in reason.split(": "):
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        at, node = next(((key, value) for key, value in pairs if key.value == name), (None, None))
        if at is None:
            break
        line = at.start_mark.line + 1
    return line
