"""The run folder: everything a run found, and the only thing that reports and reviews read.

    config.yaml        the settings, resolved            assignments.csv  a row per image (.parquet too with pyarrow)
    provenance.json    versions, device, seed, times     categories.csv   a row per category
    metrics.jsonl      a row per epoch                   skipped.csv      files that could not be read, and why
    train.log          what was said, and when           report.html      the pictures
    model.safetensors  the trained weights               estimate.json    the number of clusters, and how it was chosen
    embeddings.npy     (N, D) from the encoder           shifts.json      labeled accuracy after each shift
    shifted.npy        (N, D) after the mean shifts      choice.json      whether training helped, by unseen labels
    frozen.npy         (N, D) before any training        accuracy.json    accuracy against a truth, where one was given
    tree.npy           (N - 1, 4) over shifted.npy       thumbnails.zip   a small picture of every image

run.lock is there while a process writes to the folder. A run that was trained has two answers. One stands; the other
is a run of its own in the folder frozen/ or trained/.

Rows of arrays, assignments and thumbnails are the same images in the same order. Each file is written whole or not at
all. A run is finished when provenance.json says when; a finished run is never overwritten unless asked.
"""

import json
import platform
import time
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from shoal.errors import DataError
from shoal.files import atomic_file, write_text, writing
from shoal.runs.folder import Folder
from shoal.runs.reading import damaged, read_array, read_members, read_objects, read_settings
from shoal.runs.rows import Assignment, Category, Row, Skip, read_rows, to_csv, to_parquet
from shoal.settings import dump_settings
from shoal.text import shown

RECORDED = ("shoal", "torch", "numpy", "scipy", "scikit-learn", "pillow", "transformers")
"""Packages whose versions go into provenance.json."""


class Run(Folder):
    """A run folder. `Run.create` makes one, `Run.open` reads a finished one."""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a finished run for reading."""
        run = cls(Path(path))
        if not (run.path / "provenance.json").is_file():
            raise DataError(f"{run.path}: no run here (no provenance.json); give the folder a run was written to")
        if not run.is_finished:
            # Only what was made of a collection of images can be taken up again; embeddings are clustered anew.
            how = "with --resume" if "fingerprint" in run.provenance else "again"
            raise DataError(f"{run.path}: the run was not finished; run the same command {how}")
        return run

    # What was run, and how

    def start(self, settings: Any, *, seed: int, device: str, command: str, **more: Any) -> None:
        """Write the first half of provenance.json, which makes the folder a run's, and config.yaml."""
        found = {"command": command, "seed": seed, "device": device, "started": _now(), "finished": None, **more}
        self.write_json("provenance", {**found, **_environment()})
        write_text(self.path / "config.yaml", dump_settings(settings))

    def note(self, **more: Any) -> None:
        """Add to provenance.json."""
        self.write_json("provenance", {**self.provenance, **more})

    def finish(self, **more: Any) -> None:
        """Mark the run as finished; this is written last."""
        self.note(finished=_now(), **more)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        return read_settings(self.path / "config.yaml")

    def log(self, text: str) -> None:
        """Add a line to train.log, with the time; the only file that grows while a run goes on."""
        with writing(self.path / "train.log"), (self.path / "train.log").open("a", encoding="utf-8") as file:
            file.write(f"{_now()}  {shown(text)}\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        write_text(self.path / "metrics.jsonl", "".join(f"{json.dumps(r)}\n" for r in [*self.metrics, dict(row)]))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch."""
        file = self.path / "metrics.jsonl"
        return read_objects(file) if file.exists() else []

    # What was found

    @property
    def assignments(self) -> list[Assignment]:
        """A row per image, in the order of the embeddings."""
        return self._read_rows("assignments.csv", Assignment)

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
    def n_known(self) -> int:
        """How many of the known categories were found."""
        return sum(row.size > 0 and not row.is_novel for row in self.categories)

    @property
    def n_novel(self) -> int:
        """How many categories were found that nobody has named."""
        return sum(row.size > 0 and row.is_novel for row in self.categories)

    def write_assignments(self, rows: Iterable[Assignment]) -> None:
        """Write assignments.csv and, where pyarrow is installed, the same as assignments.parquet."""
        listed = list(rows)
        to_parquet(Assignment, listed, self.path / "assignments.parquet")
        write_text(self.path / "assignments.csv", to_csv(Assignment, listed))

    def write_categories(self, rows: Iterable[Category]) -> None:
        """Write categories.csv."""
        write_text(self.path / "categories.csv", to_csv(Category, rows))

    def write_skipped(self, rows: Iterable[Skip]) -> None:
        """Write skipped.csv."""
        write_text(self.path / "skipped.csv", to_csv(Skip, rows))

    def write_array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `<name>.npy`."""
        with atomic_file(self.path / f"{name}.npy") as file:
            # Not the file itself: numpy would write past Python, and a full disk would come back without its errno.
            np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Map `<name>.npy` into memory, read-only."""
        return read_array(self.path / f"{name}.npy")

    def embeddings(self) -> np.ndarray[Any, Any]:
        """Map embeddings.npy into memory: (N, D), finite, a row per assignment."""
        found, n_rows = self.array("embeddings"), len(self.assignments)
        if found.ndim != 2 or found.dtype.kind != "f" or len(found) != n_rows or not np.isfinite(found).all():
            what = f"found {found.dtype} of shape {found.shape}, expected finite numbers, a row for each of {n_rows:,}"
            raise damaged(self.path / "embeddings.npy", f"{what} images of assignments.csv")
        return found

    def write_thumbnails(self, images: Iterable[bytes]) -> None:
        """Write thumbnails.zip: the bytes of a small WebP, PNG or JPEG per row, in row order."""
        with atomic_file(self.path / "thumbnails.zip") as file, zipfile.ZipFile(file, "w") as archive:
            for row, image in enumerate(images):
                archive.writestr(zipfile.ZipInfo(f"{row:08d}"), image)  # a fixed date: same images, same bytes

    def thumbnails(self, rows: Iterable[int]) -> list[bytes]:
        """The thumbnails of some rows."""
        return read_members(self.path / "thumbnails.zip", [f"{row:08d}" for row in rows])

    def _read_rows(self, name: str, kind: type[Row]) -> list[Row]:
        return read_rows(kind, self.path / name)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _environment() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for name in RECORDED:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that was not installed
            packages[name] = None
    return {"python": platform.python_version(), "platform": platform.platform(), "packages": packages}
