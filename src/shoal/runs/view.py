"""A run as whoever has it may read it; nothing here writes. Every file is read when it is asked for."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import numpy as np

from shoal.errors import DataError
from shoal.runs.agreement import check_agreement
from shoal.runs.assignment_table import count_assignments, read_assignments
from shoal.runs.lock import check_not_held
from shoal.runs.rows import Assignment, Category, Row, Skip, read_rows
from shoal.runs.run_files import (
    read_array,
    read_object,
    read_objects,
    read_settings,
    read_settings_as,
    read_vectors,
)
from shoal.runs.thumbnails import Thumbnails, thumbnail_files
from shoal.settings import Settings

COMPARED = "methods"
"""The folder inside a comparison that holds a run of each method."""


class RunView:
    """The files of a run, finished or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path | str, *, checks_tables: bool = True) -> Self:
        """Open a finished run for reading; tables that contradict each other are refused, now or when they are read."""
        run = cls(Path(path))
        if not run.has("comparison.json") and not run.is_finished:
            check_not_held(run.path)  # whoever holds it will finish it, and nobody else can
        if not (run.path / "provenance.json").is_file():
            raise DataError(
                f"{run.path}: no run here (no provenance.json); give the folder a run was written to"
            )
        if run.has("comparison.json"):
            inside = run.path / COMPARED
            some = next(iter(sorted(inside.glob("*"))), inside / "NAME")
            raise DataError(
                f"{run.path}: holds a comparison of methods; give the run of one, such as {some}"
            )
        if not run.is_finished:
            # Only what was made of a collection of images can be taken up again; embeddings are clustered anew.
            how = "with --resume" if "fingerprint" in run.provenance else "again"
            raise DataError(f"{run.path}: the run was not finished; run the same command {how}")
        if checks_tables:
            check_agreement(run.path)
        return run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def has(self, part: str) -> bool:
        """Whether the run holds a file of this name."""
        return (self.path / part).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "provenance.json").is_file() and bool(self.provenance.get("finished"))

    @property
    def is_stopped(self) -> bool:
        """Whether the run is finished with a training that was stopped before its end."""
        return self.is_finished and bool(self.provenance.get("stopped_early"))

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do in it."""
        return self.is_finished and not self.is_stopped

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, device, seed, input fingerprint and times."""
        return self.json("provenance")

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        return read_settings(self.path / "config.yaml")

    def config_as(self, cls: type[Settings]) -> Settings:
        """The resolved settings as the class that they were written from."""
        return read_settings_as(cls, self.path / "config.yaml")

    def json(self, name: str) -> dict[str, Any]:
        """Read `<name>.json`."""
        return read_object(self.path / f"{name}.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch."""
        file = self.path / "metrics.jsonl"
        return read_objects(file) if file.exists() else []

    @property
    def assignments(self) -> Sequence[Assignment]:
        """A row per image, in the order of the embeddings."""
        return read_assignments(self.path)

    @property
    def categories(self) -> list[Category]:
        """A row per category, known ones first."""
        return self._read_rows("categories.csv", Category)

    @property
    def skipped(self) -> list[Skip]:
        """The files that could not be read."""
        return self._read_rows("skipped.csv", Skip) if (self.path / "skipped.csv").exists() else []

    @property
    def n_clusters(self) -> int:
        """How many categories were found; a known one that no image was given to has a row, and is not counted."""
        return self.n_known + self.n_novel

    @property
    def n_clusters_interval(self) -> tuple[int, int] | None:
        """Between which numbers of categories the truth lies with a chance of 80 %; None where K was not estimated."""
        ends = self.json("estimate").get("interval") if self.has("estimate.json") else None
        return None if ends is None else (ends[0], ends[1])

    @property
    def n_known(self) -> int:
        """How many of the known categories were found."""
        return sum(row.size > 0 and not row.is_novel for row in self.categories)

    @property
    def n_novel(self) -> int:
        """How many categories were found that nobody has named."""
        return sum(row.size > 0 and row.is_novel for row in self.categories)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Map `<name>.npy` into memory, read-only."""
        return read_array(self.path / f"{name}.npy")

    def embeddings(self) -> np.ndarray[Any, Any]:
        """Map embeddings.npy into memory: (N, D), finite, a row per assignment."""
        return read_vectors(self.path / "embeddings.npy", count_assignments(self.path))

    def thumbnails(self, rows: Iterable[int]) -> list[bytes]:
        """The thumbnails of some rows."""
        with closing(Thumbnails(self.path)) as thumbnails:
            return thumbnails.read(list(rows))

    @property
    def has_thumbnails(self) -> bool:
        """Whether the run holds them, all of their parts."""
        return bool(thumbnail_files(self.path))

    def _read_rows(self, name: str, kind: type[Row]) -> list[Row]:
        return read_rows(kind, self.path / name)
