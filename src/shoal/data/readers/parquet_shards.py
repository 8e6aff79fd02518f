"""Parquet shards as Hugging Face writes them: a column of images (bytes and path), and one of
labels.

The schema, the labels and the paths are read; an image's bytes are read when it is decoded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.data.readers.labels import why_no_label
from shoal.data.readers.tables import pick_column
from shoal.data.storage.addresses import as_address, why_unfit
from shoal.data.storage.opening import open_parquet
from shoal.data.storage.remote import Lost, asking
from shoal.errors import DataError, MissingError

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "photo")
"""Names of the column of images, where several could be."""

AGAIN = "; copy or make it again"
"""What to do with a damaged shard."""


class ShardImage(NamedTuple):
    """One image of a shard."""

    name: str
    start: int
    """Its first byte in a tar shard, its row in a parquet shard."""
    n_bytes: int
    """-1 where nobody says."""
    label: object
    """A text or a number, as it stands in the shard; None where there is none."""


@dataclass
class ShardIndex:
    """The images of one shard in its order, and what of it cannot be read."""

    images: list[ShardImage] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Images that cannot be taken, and why."""
    damage: str = ""
    """What of the shard is lost, in words; it is refused unless --allow-missing goes on."""
    bad_labels: list[tuple[str, str]] = field(default_factory=list)
    """Labels that cannot be read, by where they stand, and why; their images are unlabeled."""
    has_labels: bool = False
    """Whether the shard says anything of labels."""
    column: str | None = None
    """The column of images, in a parquet shard."""
    has_names: bool = True
    """Whether images have names of their own, not the number of their row."""


def holds_images(file: str, chosen: str | None = None) -> bool:
    """Whether a parquet file has a column of images, by its schema."""
    try:
        with asking(as_address(file)), open_parquet(file) as parquet:
            return _image_column(parquet.schema_arrow, chosen) is not None
    except (DataError, MissingError):
        raise
    except (OSError, ValueError):  # pyarrow's errors are such; whoever reads the file will say more
        return False


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
            column = _image_column(schema, chosen)
            if column is None:
                raise DataError(
                    f"{file}: no column of images {chosen or ''} (a struct of bytes and path, or "
                    f"bytes: {', '.join(IMAGE_COLUMNS)}); found {', '.join(schema.names)}; name it "
                    "with --path-column (path_column in Python)"
                )
            labels = _label_column(file, schema, accepted, label_column)
            cells: list[object] = [None] * parquet.metadata.num_rows
            if labels is not None:
                cells = parquet.read([labels]).column(0).to_pylist()
            paths: list[str | None] = []
            is_struct = _is_image_struct(schema.field(column).type)
            if is_struct:
                structs = parquet.read([f"{column}.path"]).column(0).to_pylist()
                paths = [struct and struct["path"] for struct in structs]
                column = f"{column}.bytes"
    except Lost:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a parquet shard that can be read ({error}){AGAIN}") from error
    fit = {path for path in paths if path and not why_unfit(path)}
    index = ShardIndex(has_labels=labels is not None, column=column)
    index.has_names = bool(cells) and len(fit) == len(cells)
    classes = _features(schema).get(labels or "", {}).get("names") or []
    for row, label in enumerate(cells):
        name = f"{row:08d}"
        if index.has_names:
            name = str(paths[row])
        if isinstance(label, int) and 0 <= label < len(classes):
            label = str(classes[label])
        reason = why_no_label(label)
        if reason is not None:
            reason = f"the label of {name} cannot be read ({reason})"
            index.bad_labels.append((f"row {row}, {labels}", reason))
            label = None
        index.images.append(ShardImage(name, row, -1, label))
    return index


def _image_column(schema: "Schema", chosen: str | None) -> str | None:
    """The column that holds images as bytes: the chosen one, one of the usual names, or the only
    one with a struct."""
    structs = [one.name for one in schema if _is_image_struct(one.type)]
    binary = [one.name for one in schema if str(one.type) in ("binary", "large_binary")]
    there = structs + [name for name in binary if name in IMAGE_COLUMNS]
    usual = [name for name in IMAGE_COLUMNS if name in there]
    if chosen is not None:
        usual = [name for name in there if name == chosen]
    elif not usual and len(structs) == 1:
        usual = structs
    return next(iter(usual), None)


def _is_image_struct(kind: "DataType") -> bool:
    import pyarrow

    return pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {one.name for one in kind}


def _features(schema: "Schema") -> dict[str, dict[str, Any]]:
    """What Hugging Face's `datasets` says of the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _label_column(
    file: str, schema: "Schema", accepted: Sequence[str], chosen: str | None
) -> str | None:
    features = _features(schema)
    numbered = [name for name in features if features[name].get("_type") == "ClassLabel"]
    usual = pick_column(schema.names, accepted, chosen, file)
    if usual is None and len(numbered) == 1:
        return numbered[0]
    return usual
