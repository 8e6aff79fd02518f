"""The answer of a run as it was found: what a review starts from. N images, K categories."""

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import Floats, Ints
from shoal.errors import UsageError
from shoal.runs import Category, RunView, check_columns, damaged, read_assignment_columns
from shoal.words import first_few

MANY = 1_000
"""Paths from which on it pays to have all of them ready as they are written."""

MAX_READY = 256 << 20
"""Bytes that these may take."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """JSON, to be written as it is."""

    data: bytes


@dataclass(frozen=True, eq=False, kw_only=True)
class RunTables:
    """The images of a run, the categories it found, and who is in them, a column at a time."""

    paths: Sequence[str]
    category_ids: Ints
    """(N,) -1 for an image that has no category."""
    categories: Sequence[Category]
    columns: dict[str, Any]
    """The other columns of assignments.csv, by name."""
    kept_out: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The categories that images were thrown out of in the review that the run was made after, by path."""

    @classmethod
    def read(cls, run: RunView) -> "RunTables":
        """Read the tables of a finished run, never what a review made of them; refuses what contradicts itself."""
        columns = read_assignment_columns(run.path)
        # Not `run.categories`, which a run with a review has changed.
        categories = RunView(run.path).categories
        paths = columns.pop("path")
        ids = columns.pop("category_id")
        check_columns(run.path, paths, ids.tolist(), columns["category"])
        return cls(
            paths=paths,
            category_ids=ids,
            categories=categories,
            columns=columns,
            kept_out=_kept_out(run, {c.category_id for c in categories}),
        )

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each path."""
        return dict(zip(self.paths, range(len(self.paths)), strict=True))

    @cached_property
    def id_of(self) -> dict[str, int]:
        """The category of each name that the run gave."""
        return {c.category: c.category_id for c in self.categories}

    @cached_property
    def mixed_probability(self) -> dict[int, float]:
        """How likely each category of the run holds another one."""
        return {c.category_id: c.mixed_probability for c in self.categories}

    def rows(self, paths: Sequence[Any]) -> Ints:
        """The rows of some paths; a path that is no image's is an error."""
        try:
            return np.array([self.row_of[path] for path in paths], dtype=np.int64)
        except (KeyError, TypeError) as error:
            unknown = [
                path for path in paths if not isinstance(path, str) or path not in self.row_of
            ]
            listed = first_few([repr(path) for path in unknown])
            raise UsageError(
                f"images: not in this run: {listed}; give paths as assignments.csv has them"
            ) from error

    def listed(self, rows: Ints) -> Encoded:
        """The paths of some rows as JSON."""
        is_worth_it = len(rows) > MANY or "written" in vars(
            self
        )  # the latter: they are there already
        if not is_worth_it or not len(self.written):
            return Encoded(
                json.dumps(
                    [self.paths[row] for row in rows.tolist()], separators=(",", ":")
                ).encode()
            )
        return Encoded(b"[%b]" % self.written[rows].tobytes().translate(None, b"\0")[:-1])

    @cached_property
    def written(self) -> NDArray[np.bytes_]:
        """(N,) each path as JSON with a comma behind it, filled up with NUL; empty where that were too large.

        Taking bytes from one place is many times faster than visiting a hundred thousand texts.
        """
        texts = [f"{json.dumps(path)}," for path in self.paths]
        is_fit = max(map(len, texts), default=0) * len(texts) <= MAX_READY
        return np.array(texts if is_fit else [], dtype=np.bytes_)

    @cached_property
    def checksum(self) -> str:
        """Equal for the same images in the same categories, whatever else the run holds."""
        digest = hashlib.sha256(np.ascontiguousarray(self.category_ids, dtype="<i8").tobytes())
        digest.update("\0".join(self.paths).encode("utf-8", "surrogateescape"))
        names = "\0".join(
            f"{category.category_id}\0{category.category}" for category in self.categories
        )
        digest.update(names.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]

    @cached_property
    def typical_order(self) -> Ints:
        """(N,) all rows, the most typical of their category first: by outlier score, then confidence, then row."""
        scores: list[Floats] = [
            np.nan_to_num(self.columns[name], nan=0.0) for name in ("outlier_score", "confidence")
        ]
        return np.lexsort((np.arange(len(self)), -scores[1], scores[0]))


def _kept_out(run: RunView, there: Set[int]) -> dict[str, frozenset[int]]:
    """The cannot-links that a run was itself made with, by image, to the categories that are still there."""
    if not run.has("changes.json"):
        return {}
    try:
        cannot_links = run.json("changes")["cannot_links"]
        return {str(path): frozenset(map(int, ids)) & there for path, ids in cannot_links.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(
            run.path / "changes.json", "cannot_links: expected lists of ids by image"
        ) from error
