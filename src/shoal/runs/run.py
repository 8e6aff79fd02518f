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

A run that was trained has two answers. One stands; the other is a run of its own in the folder frozen/ or trained/.

Rows of arrays, assignments and thumbnails are the same images in the same order. Each file is written whole or not at
all. A run is finished when provenance.json says when; a finished run is never overwritten unless asked.
"""

import contextlib
import json
import os
import platform
import shutil
import time
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import yaml

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, make_folder, write_text, writing
from shoal.runs.rows import Assignment, Category, Row, Skip, from_csv, to_csv, to_parquet
from shoal.settings import dump_settings

PARTS = (
    *("config.yaml", "provenance.json", "metrics.jsonl", "estimate.json", "shifts.json", "accuracy.json"),
    *("model.safetensors", "embeddings.npy", "shifted.npy", "frozen.npy", "tree.npy", "thumbnails.zip", "report.html"),
    *("assignments.csv", "assignments.parquet", "categories.csv", "skipped.csv", "map.npz"),
    *("choice.json", "train.log", "checkpoint.safetensors"),
)
"""The files a run may hold; with `force` these, snapshots and TensorBoard's events are removed and nothing else."""

SNAPSHOTS = "best-*.safetensors"
"""The best weights so far, while training goes on."""

EVENTS = "events.out.tfevents.*"
"""What TensorBoard reads."""

LEFTOVERS = (".*.tmp", "tokens.npy.*")
"""What a killed run leaves behind: files half written, and the trunk's tokens."""

ANSWERS = ("frozen", "trained")
"""The folders inside a run that may hold its other answer: without training, or with it."""

RECORDED = ("shoal", "torch", "numpy", "scipy", "scikit-learn", "pillow", "transformers")
"""Packages whose versions go into provenance.json."""


_DAMAGED = "damaged; delete it to do without it, or run the command that made the run again"


class Run:
    """A run folder. `Run.create` makes one, `Run.open` reads a finished one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> Self:
        """Make the folder, or take an empty or unfinished one; a finished run only with `force`, which clears it."""
        run = cls(Path(path))
        run.check_free(force=force)
        if force:
            run._clear()
        for file in run._leftovers():
            file.unlink(missing_ok=True)
        make_folder(run.path)
        return run

    def check_free(self, *, force: bool = False) -> None:
        """Refuse a folder that `create` would not take; makes and removes nothing."""
        if self.is_finished and not force:
            raise UsageError(f"{self.path}: holds a finished run; give --force to overwrite it, or another --out")
        there = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise UsageError(f"{there}: is a file, expected a folder; choose another place")
        if there == self.path and {*there.iterdir()} - self._leftovers() and not self.has("provenance.json"):
            raise UsageError(f"{there}: holds files but no run; choose an empty or new folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"{there}: nothing can be written there; choose another place")

    def abandon(self) -> None:
        """Remove a run that has come to nothing, so that the next one finds its folder free."""
        self._clear()
        with contextlib.suppress(OSError):  # it was there before, with something in it
            self.path.rmdir()

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

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # What was run, and how

    def start(self, settings: Any, *, seed: int, device: str, command: str, **more: Any) -> None:
        """Write the first half of provenance.json, which makes the folder a run's, and config.yaml."""
        found = {"command": command, "seed": seed, "device": device, "started": _now(), "finished": None, **more}
        self.write_json("provenance", {**found, **_environment()})
        write_text(self.path / "config.yaml", dump_settings(settings))

    def finish(self, **more: Any) -> None:
        """Mark the run as finished; this is written last."""
        self.write_json("provenance", {**self.provenance, "finished": _now(), **more})

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "provenance.json").is_file() and bool(self.provenance.get("finished"))

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, device, seed, input fingerprint and times."""
        return self.json("provenance")

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        found: dict[str, Any] = yaml.safe_load(self._read("config.yaml"))
        return found

    def log(self, text: str) -> None:
        """Add a line to train.log, with the time; the only file that grows while a run goes on."""
        with writing(self.path / "train.log"), (self.path / "train.log").open("a", encoding="utf-8") as file:
            file.write(f"{_now()}  {text}\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        write_text(self.path / "metrics.jsonl", "".join(f"{json.dumps(r)}\n" for r in [*self.metrics, dict(row)]))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch."""
        file = self.path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

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
        """How many categories there are."""
        return len(self.categories)

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
        file = self.path / f"{name}.npy"
        if not file.exists():
            raise DataError(f"{file}: not in this run")
        try:
            found: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"{file}: {_DAMAGED}") from error
        return found

    def write_json(self, name: str, found: Mapping[str, Any]) -> None:
        """Write `<name>.json`."""
        write_text(self.path / f"{name}.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")

    def json(self, name: str) -> dict[str, Any]:
        """Read `<name>.json`."""
        try:
            found: dict[str, Any] = json.loads(self._read(f"{name}.json"))
        except json.JSONDecodeError as error:
            raise DataError(f"{self.path / name}.json: {_DAMAGED} ({error})") from error
        return found

    def has(self, part: str) -> bool:
        """Whether the run holds a file of this name."""
        return (self.path / part).is_file()

    def keep_model(self, into: "Run") -> None:
        """Copy the best snapshot of training, where there is one, to the model.safetensors of a run.

        A run that was killed may have left an older one too; the best is the last that was written.
        """
        snapshots = sorted(self.path.glob(SNAPSHOTS), key=lambda file: int(file.stem.partition("-")[2]))
        if snapshots:
            _copy(snapshots[-1], into.path / "model.safetensors")

    def share(self, part: str, other: "Run") -> None:
        """Give another run the same file, without a second copy where the file system can link."""
        target = other.path / part
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(self.path / part)
        except OSError:
            _copy(self.path / part, target)

    def drop_checkpoints(self) -> None:
        """Remove what only a resumed run would need."""
        for file in (self.path / "checkpoint.safetensors", *self.path.glob(SNAPSHOTS)):
            file.unlink(missing_ok=True)

    def write_thumbnails(self, images: Iterable[bytes]) -> None:
        """Write thumbnails.zip: the bytes of a small WebP, PNG or JPEG per row, in row order."""
        with atomic_file(self.path / "thumbnails.zip") as file, zipfile.ZipFile(file, "w") as archive:
            for row, image in enumerate(images):
                archive.writestr(zipfile.ZipInfo(f"{row:08d}"), image)  # a fixed date: same images, same bytes

    def thumbnails(self, rows: Iterable[int]) -> list[bytes]:
        """The thumbnails of some rows."""
        if not self.has("thumbnails.zip"):
            raise DataError(f"{self.path / 'thumbnails.zip'}: not in this run")
        try:
            with zipfile.ZipFile(self.path / "thumbnails.zip") as archive:
                return [archive.read(f"{row:08d}") for row in rows]
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise DataError(f"{self.path / 'thumbnails.zip'}: {_DAMAGED} ({error})") from error

    def _leftovers(self) -> set[Path]:
        return {file for pattern in LEFTOVERS for file in self.path.glob(pattern)}

    def _clear(self) -> None:
        """Remove what a run has written, its other answer too, and nothing else."""
        for file in (*(self.path / name for name in PARTS), *self.path.glob(SNAPSHOTS), *self.path.glob(EVENTS)):
            file.unlink(missing_ok=True)
        for other in (Run(self.path / name) for name in ANSWERS):
            if other.has("provenance.json"):
                other.abandon()

    def _read(self, name: str) -> str:
        file = self.path / name
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DataError(f"{file}: not in this run; is {self.path} the folder a run was written to?") from error

    def _read_rows(self, name: str, kind: type[Row]) -> list[Row]:
        return from_csv(kind, self._read(name), str(self.path / name))


def _copy(source: Path, target: Path) -> None:
    with atomic_file(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


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
