"""The run folder: everything a run found, and the only thing that reports and reviews read.

    config.yaml        the settings, resolved
    provenance.json    versions, device, seed, times
    metrics.jsonl      a row per epoch
    train.log          what was said, and when
    model.safetensors  the trained weights
    embeddings.npy     (N, D) from the encoder
    shifted.npy        (N, D) after the mean shifts
    frozen.npy         (N, D) before any training
    tree.npy           (N - 1, 4) over shifted.npy
    calibration.json   what confidence rests on
    assignments.csv    a row per image (.parquet too with pyarrow)
    categories.csv     a row per category
    skipped.csv        files that could not be read, and why
    report.html        the pictures
    estimate.json      the number of clusters, and how it was chosen
    shifts.json        labeled accuracy after each shift
    choice.json        whether training helped, by unseen labels
    accuracy.json      accuracy against a truth, where one was given
    thumbnails.zip     a small picture of every image
    changes.json       what a review of an earlier run has changed
    model.json         how model.safetensors is used: blocks trained, weight of the frozen encoder

A comparison of methods is a folder of the same kind: comparison.json (its table), kept.csv (the
labels that no method saw), compare.html, and a run of each method in methods/.

A run that was trained has two answers. One stands; the other is a run of its own in the folder
frozen/ or trained/.

A run of more than a million images has assignments-00000-of-00010.parquet and so on instead of
assignments.csv, and thumbnails-00000-of-00010.zip and so on instead of thumbnails.zip, a million
images in each; embeddings.npy and shifted.npy are float16 then, else float32.

Rows of arrays, assignments and thumbnails are the same images in the same order. Each file is
written whole or not at all. While a process writes to the folder there is a run.lock. A run is
finished when provenance.json says when; a finished run is never overwritten unless asked.
"""

import contextlib
import fnmatch
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file, make_folder, open_own, write_text, writing
from shoal.runs import file_parts
from shoal.runs.assignment_table import (
    ROWS_AT_ONCE,
    TABLE_PARTS,
    check_agreement,
    count_assignments,
    read_assignments,
    write_assignments,
)
from shoal.runs.lock import LOCK, check_not_held
from shoal.runs.rows import Assignment, Category, Skip, read_rows, to_csv
from shoal.runs.run_files import (
    read_array,
    read_object,
    read_objects,
    read_settings,
    read_settings_as,
    read_vectors,
)
from shoal.runs.thumbnails import (
    THUMBNAIL_PARTS,
    Thumbnails,
    thumbnail_files,
    write_thumbnails,
)
from shoal.settings import Settings, dump_settings
from shoal.text import shown

SNAPSHOTS = "best-*.safetensors"
"""The best weights so far, while training goes on."""

PARTS = (
    "config.yaml",
    "provenance.json",
    "metrics.jsonl",
    "estimate.json",
    "shifts.json",
    "accuracy.json",
    "calibration.json",
    "changes.json",
    "model.safetensors",
    "embeddings.npy",
    "shifted.npy",
    "frozen.npy",
    "tree.npy",
    "thumbnails.zip",
    "report.html",
    "assignments.csv",
    "assignments.parquet",
    "categories.csv",
    "skipped.csv",
    "map.npz",
    "choice.json",
    "judged.json",
    "plan.json",
    "model.json",
    "train.log",
    "checkpoint.safetensors",
    "comparison.json",
    "kept.csv",
    "compare.html",
    SNAPSHOTS,
    "events.out.tfevents.*",  # what TensorBoard reads
    TABLE_PARTS,
    THUMBNAIL_PARTS,
)
"""The files a run may hold, as patterns; with `force` these are removed and nothing else."""

LEFTOVERS = (".*.tmp", "tokens.npy.*", "views.npy.*")
"""What a killed run leaves behind: files half written, and the trunk's tokens."""

TRIALS = "trial-*"
"""Folders of trainings from which some labels are kept, to see whether training helps; removed in
the end."""

OUTLIVES = ("review*.jsonl", ".review.jsonl.lock")
"""What people decided about a run: it stays when the run is removed, to be replayed onto the next
one."""

COMPARED = "methods"
"""The folder inside a comparison that holds a run of each method."""

ANSWERS = ("frozen", "trained")
"""The folders inside a run that may hold its other answer: without training, or with it."""

RECORDED = ("shoal", "torch", "numpy", "scipy", "scikit-learn", "pillow", "transformers")
"""Packages whose versions go into provenance.json."""

UNIT_ROWS = ("embeddings", "shifted")
"""Arrays whose entries lie within -1 and 1. Not frozen.npy: an interrupted run goes on from it to
the same bytes."""


class Run:
    """A run folder, every file of it read when it is asked for.

    `Run.create` makes one, `Run.open` reads a finished one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path | str, *, checks_tables: bool = True) -> Self:
        """Open a finished run for reading; tables that contradict each other are refused, now or
        when they are read."""
        run = cls(Path(path))
        if not run.has("comparison.json") and not run.is_finished:
            check_not_held(run.path)  # whoever holds it will finish it, and nobody else can
        if not (run.path / "provenance.json").is_file():
            raise DataError(
                f"{run.path}: no run here (no provenance.json); give the folder a run was written "
                "to"
            )
        if run.has("comparison.json"):
            inside = run.path / COMPARED
            some = next(iter(sorted(inside.glob("*"))), inside / "NAME")
            raise DataError(
                f"{run.path}: holds a comparison of methods; give the run of one, such as {some}"
            )
        if not run.is_finished:
            # Only what was made of a collection of images can be taken up again; embeddings are
            # clustered anew.
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
        return read_rows(Category, self.path / "categories.csv")

    @property
    def skipped(self) -> list[Skip]:
        """The files that could not be read."""
        file = self.path / "skipped.csv"
        if not file.exists():
            return []
        return read_rows(Skip, file)

    @property
    def n_clusters(self) -> int:
        """How many categories were found; a known one that no image was given to has a row, and is
        not counted."""
        return self.n_known + self.n_novel

    @property
    def n_clusters_interval(self) -> tuple[int, int] | None:
        """Between which numbers of categories the truth lies with a chance of 80 %; None where K
        was not estimated."""
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

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> Self:
        """Make the folder, or take an empty or unfinished one; a finished run only with `force`,
        which clears it."""
        run = cls(Path(path))
        run.check_free(force=force)
        if force:
            run._clear()
        run.unlink_inside()
        for file in run._matching(LEFTOVERS):
            file.unlink(missing_ok=True)
        make_folder(run.path)
        return run

    def check_free(self, *, force: bool = False) -> None:
        """Refuse a folder that `create` would not take; makes and removes nothing."""
        # A run that cannot be read is cleared by force like any other.
        if not force and self.is_finished:
            go_on = "--resume to continue its training, " if self.is_stopped else ""
            raise UsageError(
                f"{self.path}: holds a finished run; give {go_on}--force to overwrite it, or "
                "another --out"
            )
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"{there}: is a file, expected a folder; choose another path")
        if there == self.path and self._holds_more() and not self.has("provenance.json"):
            raise UsageError(
                f"{there}: holds files but no run (no provenance.json); choose an empty or new "
                "folder"
            )
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"{there}: nothing can be written there; choose another path")

    def abandon(self) -> None:
        """Remove a run that has come to nothing, so that the next one finds its folder free."""
        self._clear()
        with contextlib.suppress(OSError):  # it was there before, with something in it
            self.path.rmdir()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write `<name>.json`."""
        write_text(
            self.path / f"{name}.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        )

    def drop(self, *parts: str) -> None:
        """Remove some files, where they are."""
        for part in parts:
            (self.path / part).unlink(missing_ok=True)

    def keep_model(self, into: "Run") -> None:
        """Copy the best snapshot of training, where there is one, to the model.safetensors of a
        run.

        A run that was killed may have left an older one too; the best is the last that was written.
        """
        snapshots = sorted(
            self.path.glob(SNAPSHOTS), key=lambda file: int(file.stem.partition("-")[2])
        )
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

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run holds what only a resumed one would need."""
        return bool(self._matching(("checkpoint.safetensors", SNAPSHOTS, TRIALS)))

    def drop_checkpoints(self) -> None:
        """Remove what only a resumed run would need."""
        for file in self._matching(("checkpoint.safetensors", SNAPSHOTS)):
            file.unlink(missing_ok=True)
        self._drop_trials()

    def unlink_inside(self) -> None:
        """Remove links under the names of runs inside this one; what they lead to is another's."""
        for path in self._matching((*ANSWERS, COMPARED, TRIALS)):
            if path.is_symlink():
                path.unlink()

    def _drop_trials(self) -> None:
        for path in self.path.glob(TRIALS):
            if path.is_dir():
                Run(path).abandon()

    def _matching(self, patterns: Iterable[str]) -> set[Path]:
        """What lies in the folder under such names; links that lead nowhere too, which `glob`
        leaves out."""
        if not self.path.is_dir():
            return set()
        is_match = re.compile("|".join(map(fnmatch.translate, patterns))).match
        return {file for file in self.path.iterdir() if is_match(file.name)}

    def _holds_more(self) -> bool:
        """Whether something is there that no killed run has left behind."""
        return bool({*self.path.iterdir()} - self._matching((*LEFTOVERS, *OUTLIVES, LOCK)))

    def _clear(self) -> None:
        """Remove what a run has written, its other answer too, and nothing else."""
        self.unlink_inside()
        for file in self._matching((*PARTS, *LEFTOVERS)):
            file.unlink(missing_ok=True)
        self._drop_trials()
        compared = self.path / COMPARED
        for path in (*(self.path / name for name in ANSWERS), *compared.glob("*")):
            inside = Run(path)
            # A link leads to a run of somebody's.
            is_own = path.is_dir() and not path.is_symlink()
            if is_own and (inside.has("provenance.json") or not inside._holds_more()):
                inside.abandon()
        with contextlib.suppress(OSError):  # there is none, or something else is in it
            compared.rmdir()

    def start(self, settings: Any, *, seed: int, device: str, command: str, **more: Any) -> None:
        """Write the first half of provenance.json, which makes the folder a run's, and
        config.yaml."""
        provenance = {"command": command, "seed": seed, "device": device}
        times = {"started": _now(), "finished": None}
        self.write_json("provenance", {**provenance, **times, **more, **_environment()})
        write_text(self.path / "config.yaml", dump_settings(settings))

    def note(self, **more: Any) -> None:
        """Add to provenance.json."""
        self.write_json("provenance", {**self.provenance, **more})

    def finish(self, **more: Any) -> None:
        """Mark the run as finished; this is written last."""
        self.note(finished=_now(), **more)

    def log(self, text: str) -> None:
        """Add a line to train.log, with the time; the only file that grows while a run goes on."""
        path = self.path / "train.log"
        with writing(path), open(path, "a", encoding="utf-8", opener=open_own) as file:
            file.write(f"{_now()}  {shown(text)}\n")

    def write_assignments(self, rows: Iterable[Assignment], n_rows: int | None = None) -> None:
        """Write assignments.csv, and the same as assignments.parquet; past a million rows parts in
        parquet alone.

        Parquet is written where pyarrow is installed. Rows that are made one by one come with their
        number, `n_rows`.
        """
        if n_rows is None:
            rows = list(rows)
            n_rows = len(rows)
        write_assignments(self.path, rows, n_rows)

    def write_categories(self, rows: Iterable[Category]) -> None:
        """Write categories.csv."""
        write_text(self.path / "categories.csv", to_csv(Category, rows))

    def write_skipped(self, rows: Iterable[Skip]) -> None:
        """Write skipped.csv."""
        write_text(self.path / "skipped.csv", to_csv(Skip, rows))

    def write_array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `<name>.npy`; unit rows of more than a million images in float16, a block at a
        time."""
        with atomic_file(self.path / f"{name}.npy") as file:
            if name in UNIT_ROWS and len(array) > file_parts.PART_ROWS:
                header = {"descr": "<f2", "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for start in range(0, len(array), ROWS_AT_ONCE):
                    file.write(array[start : start + ROWS_AT_ONCE].astype("<f2").tobytes())
                return
            # Not the file itself: numpy would write past Python, and a full disk would come back
            # without its errno.
            np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)

    def write_thumbnails(self, images: Iterable[bytes], n_images: int | None = None) -> None:
        """Write thumbnails.zip: the bytes of a small WebP, PNG or JPEG per row, in row order.

        Of more than a million there are parts, for which their number comes with them, as
        `n_images`.
        """
        write_thumbnails(self.path, images, n_images)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@cache  # the packages' own files are long, and a process has one version of each
def _environment() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for name in RECORDED:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that was not installed
            packages[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
    }


def _copy(source: Path, target: Path) -> None:
    with atomic_file(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)
