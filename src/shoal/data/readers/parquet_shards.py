"""Parquet shards as Hugging Face writes them: a column of images (bytes and path), and one of
labels.

The schema, the labels and the paths are read; an image's bytes are read when it is decoded.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from shoal.data.readers.labels import why_no_label
from shoal.data.readers.shard_index import AGAIN, ShardImage, ShardIndex
from shoal.data.storage.addresses import as_address, why_unfit
from shoal.data.storage.opening import open_parquet
from shoal.data.storage.remote import asking
from shoal.data.storage.retries import Lost
from shoal.data.storage.stored import UNKNOWN
from shoal.errors import DataError, MissingError

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "photo")
"""Names of the column of images, where several could be."""


def image_column(schema: Any, chosen: str | None = None) -> str | None:
    """The column that holds images as bytes: the chosen one, one of the usual names, or the only
    one with a struct."""
    struct = [one.name for one in schema if _is_image_struct(one.type)]
    binary = [
        one.name
        for one in schema
        if str(one.type) in ("binary", "large_binary") and one.name in IMAGE_COLUMNS
    ]
    there = struct + binary
    if chosen is not None:
        if chosen not in there:
            return None
        return chosen
    usual = next((name for name in IMAGE_COLUMNS if name in there), None)
    if usual is None and len(struct) == 1:
        return str(struct[0])
    return usual


def holds_images(file: str, chosen: str | None = None) -> bool | None:
    """Whether a parquet file has a column of images, by its schema; None where there is none
    that can be read."""
    address = as_address(file)
    if address is None and not Path(file).is_file():
        return None
    try:
        with asking(address), open_parquet(file) as parquet:
            return image_column(parquet.schema_arrow, chosen) is not None
    except (DataError, MissingError):
        raise
    except (OSError, ValueError):  # pyarrow's errors are such; whoever reads the file will say more
        return None


def index_parquet(
    file: str, accepted: Sequence[str], chosen: str | None, label_column: str | None
) -> ShardIndex:
    """Find the images of a parquet shard and their labels; a label that is a number has a name
    where the file says so.

    Images are named by their path where every row has one of its own, else by their row.
    """
    import pyarrow

    try:
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            column = image_column(schema, chosen)
            if column is None:
                wanted = f"column {chosen!r}" if chosen else f"one of {', '.join(IMAGE_COLUMNS)}"
                raise DataError(
                    f"{file}: no column of images (a struct of bytes and path, or bytes: "
                    f"{wanted}); found "
                    f"{', '.join(map(repr, schema.names))}; name it with --path-column "
                    "(path_column in Python)"
                )
            features = _features(schema)
            labels = _label_column(file, schema.names, features, accepted, label_column)
            n_rows = parquet.metadata.num_rows
            is_struct = _is_image_struct(schema.field(column).type)
            names = _paths(parquet, column) if is_struct else None
            cells: list[object] = [None] * n_rows
            if labels is not None:
                cells = parquet.read([labels]).column(0).to_pylist()
    except Lost:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a parquet shard that can be read ({error}){AGAIN}") from error
    index = ShardIndex(
        has_labels=labels is not None,
        column=f"{column}.bytes" if is_struct else column,
        has_names=names is not None,
    )
    classes = _class_names(features, labels)
    for row, cell in enumerate(cells):
        name = f"{row:08d}" if names is None else names[row]
        label = cell
        if isinstance(cell, int) and 0 <= cell < len(classes):
            label = classes[cell]
        reason = why_no_label(label)
        if reason is not None:
            index.bad_labels.append(
                (
                    f"{PurePath(file).name}, row {row}, {labels}",
                    f"the label of {name} cannot be read ({reason})",
                )
            )
            label = None
        index.images.append(ShardImage(name, row, UNKNOWN, label))
    return index


def _is_image_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<") and {"bytes", "path"} <= {
        kind.field(i).name for i in range(kind.num_fields)
    }


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What Hugging Face's `datasets` says of the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _class_names(features: Mapping[str, dict[str, Any]], column: str | None) -> list[str]:
    """The names of the classes that the numbers of a column mean."""
    names = features.get(column or "", {}).get("names")
    return list(map(str, names or []))


def _label_column(
    file: str,
    names: Sequence[str],
    features: Mapping[str, dict[str, Any]],
    accepted: Sequence[str],
    chosen: str | None,
) -> str | None:
    if chosen is not None and chosen not in names:
        raise DataError(
            f"{file}: no column {chosen!r} for the labels; found {', '.join(map(repr, names))}"
        )
    by_name = {name.strip().casefold(): name for name in reversed(names)}
    usual = chosen or next((by_name[name] for name in accepted if name in by_name), None)
    if usual is not None:
        return usual
    labels = [name for name in names if features.get(name, {}).get("_type") == "ClassLabel"]
    return labels[0] if len(labels) == 1 else None


def _paths(parquet: Any, column: str) -> list[str] | None:
    """The path of every image; None unless each has one of its own that is fit to be a name."""
    cells = parquet.read([f"{column}.path"]).column(0).to_pylist()
    paths = [cell and cell.get("path") for cell in cells]
    if len(set(paths)) < len(paths) or any(path is None or why_unfit(path) for path in paths):
        return None
    return paths
