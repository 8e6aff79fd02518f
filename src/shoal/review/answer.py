"""The answer of a run as it was found: what a review starts from. N images, K categories."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.errors import UsageError
from shoal.runs import Assignment, Category, RunView, read_columns
from shoal.words import first_few


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The images of a run, the categories it found, and who is in them, a column at a time."""

    paths: Sequence[str]
    category_ids: Ints
    """(N,) -1 for an image that has no category."""
    categories: Sequence[Category]
    columns: dict[str, Any]
    """The other columns of assignments.csv, by name."""

    @classmethod
    def read(cls, run: RunView) -> "Answer":
        """Read the tables of a finished run, never what a review made of them."""
        columns = read_columns(Assignment, run.path / "assignments.csv")
        # Not `run.categories`, which a run with a review has changed.
        categories = RunView(run.path).categories
        paths, ids = columns.pop("path"), columns.pop("category_id")
        return cls(paths=paths, category_ids=ids, categories=categories, columns=columns)

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each path."""
        return dict(zip(self.paths, range(len(self.paths)), strict=True))

    def rows(self, paths: Sequence[Any]) -> Ints:
        """The rows of some paths; a path that is no image's, or twice, is an error."""
        try:
            found = np.array([self.row_of[path] for path in paths], dtype=np.int64)
        except (KeyError, TypeError) as error:
            unknown = [path for path in paths if not isinstance(path, str) or path not in self.row_of]
            listed = first_few([repr(path) for path in unknown])
            raise UsageError(f"images: not in this run: {listed}; give paths as assignments.csv has them") from error
        if len(np.unique(found)) != len(found):
            raise UsageError("images: one is named twice; name each once")
        return found

    @cached_property
    def checksum(self) -> str:
        """Equal for the same images in the same categories, whatever else the run holds."""
        digest = hashlib.sha256(np.ascontiguousarray(self.category_ids, dtype="<i8").tobytes())
        digest.update("\0".join(self.paths).encode("utf-8", "surrogateescape"))
        names = "\0".join(f"{category.category_id}\0{category.category}" for category in self.categories)
        digest.update(names.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]

    @cached_property
    def typical_order(self) -> Ints:
        """(N,) all rows, the most typical of their category first: by outlier score, then confidence, then row."""
        scores: list[Floats] = [np.nan_to_num(self.columns[name], nan=0.0) for name in ("outlier_score", "confidence")]
        return np.lexsort((np.arange(len(self)), -scores[1], scores[0]))
