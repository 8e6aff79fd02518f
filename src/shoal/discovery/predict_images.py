"""The inputs of `run.predict`; a list has a row per entry, in the caller's order."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.collection import Collection
from shoal.data.pixels import NoneReadable, Skipped
from shoal.data.readers import read_collection
from shoal.data.readers.tables import PATH_COLUMNS, as_table, is_frame, require_column
from shoal.data.storage.addresses import absolute
from shoal.discovery.assign import Assigned, Assigner
from shoal.errors import DataError
from shoal.runs import UNREADABLE, Assignment
from shoal.words import count, first_few


def assign_any(assigner: Assigner, images: Any, *, allow_missing: bool = False) -> Assigned:
    """Assign what a Python caller holds: a path, or paths, images or embeddings in memory.

    A folder, table or shard has a row per readable image, by name; `allow_missing` as for
    `Assigner.assign`. A list has a row per entry, in its order, whatever can be read and however
    often an image is listed.
    """
    if isinstance(images, str | os.PathLike):
        return assigner.assign(images, allow_missing=allow_missing)
    is_array = isinstance(images, np.ndarray)
    if is_array and images.ndim == 2 and images.dtype.kind == "f":
        names = [f"row-{i:06d}" for i in range(len(images))]
        return assigner.assign_embeddings(names, images), ()
    if is_frame(images):
        table = as_table(images)
        images = list(table.columns[require_column(table, PATH_COLUMNS, None, "path")])
    else:
        is_pixels = is_array and images.dtype.kind not in "UO"
        is_list = hasattr(images, "__len__") and not isinstance(images, Mapping | bytes)
        if is_list and not is_pixels:
            images = list(images)
    if isinstance(images, list) and images and isinstance(images[0], str | os.PathLike):
        return _assign_paths(assigner, images)
    collection = read_collection(images, False)
    return _assign_each(assigner, collection, collection.names, collection.names)


def _assign_paths(assigner: Assigner, paths: Sequence[Any]) -> Assigned:
    """Assign listed files; a path that is not there, or that leads to a folder, is an error."""
    for i, path in enumerate(paths):
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):  # noqa: PTH112
            raise DataError(
                f"path {i}: {os.fspath(path)} is a folder; give a folder by itself, or list its "
                "images"
            )
    collection = read_collection(paths, False, allow_missing=True)
    name_of = {str(collection.source(i)): name for i, name in enumerate(collection.names)}
    names = [name_of.get(str(absolute(path)), "") for path in paths]
    absent = [f"path {i}: {os.fspath(path)}" for i, path in enumerate(paths) if not names[i]]
    if absent:
        raise DataError(
            f"not there: {len(absent):,} of {count(len(paths), 'listed image')} "
            f"({first_few(absent, separator='; ')}); correct the paths, or leave out these images"
        )
    return _assign_each(assigner, collection, names, [os.fspath(path) for path in paths])


def _assign_each(
    assigner: Assigner, collection: Collection, names: Sequence[str], given: Sequence[str]
) -> Assigned:
    """A row for each of `names` of the collection, under the path that was `given` for it."""
    try:
        rows, skipped = assigner.assign_images(collection)
    except NoneReadable as error:
        rows = []
        skipped = error.skipped
    row_of = {row.path: row for row in rows}
    for image in skipped:  # in no category, and not possibly new either
        row_of[image.name] = Assignment(
            path=image.name,
            category_id=UNLABELED,
            category="",
            is_novel=False,
            confidence=0.0,
            outlier_score=float("nan"),
            status=UNREADABLE,
        )
    path_of = dict(zip(names, given, strict=True))
    listed = [replace(row_of[name], path=path) for name, path in zip(names, given, strict=True)]
    return listed, tuple(Skipped(path_of[image.name], image.reason) for image in skipped)
