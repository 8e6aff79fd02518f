"""The run folder: everything that a run computed, and all that reports and reviews read.

    config.yaml        the settings, resolved
    provenance.json    versions, device, seed, times
    metrics.jsonl      a row per epoch
    train.log          log messages with their times
    model.safetensors  the trained weights
    embeddings.npy     (N, D) from the encoder
    shifted.npy        (N, D) after the mean shifts
    frozen.npy         (N, D) before any training
    tree.npy           (N - 1, 4) over shifted.npy
    calibration.json   the calibration of confidence
    assignments.csv    a row per image
    categories.csv     a row per category
    skipped.csv        unreadable files, and why
    report.html        the report
    estimate.json      the number of clusters, and its estimate
    shifts.json        labeled accuracy after each mean shift
    choice.json        held-out accuracy of the frozen and trained results
    accuracy.json      accuracy on true labels, if given
    thumbnails.bin     a small picture of every image
    changes.json       what the review of an earlier run changed
    model.json         trained blocks, shape, and the weight of the frozen embeddings in the blend

A comparison of methods is a folder with comparison.json (its table), held_out.csv (the held-out
labels), compare.html, and a run of each method in methods/.

A trained run has two results. One is used; the other is a separate run in the folder frozen/ or
trained/.

Rows of arrays, assignments and thumbnails are the same images in the same order. Each file is
written completely or not at all. While a process writes to the folder there is a run.lock. A run is
finished when provenance.json has `finished`; a finished run is overwritten only on request.

Locks are those of the operating system, by filelock: they end with their process, even when it is
killed. The lock file names the process.
"""

import contextlib
import fnmatch
import json
import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout
from numpy.typing import NDArray

from shoal.errors import DataError, UsageError, shown
from shoal.files import atomic_file, make_folder, open_no_follow, write_text, writing
from shoal.runs.tables import (
    TABLE,
    Assignment,
    Category,
    check_agreement,
    damaged,
    read_array,
    read_columns,
    read_object,
    read_objects,
    read_rows,
    read_vectors,
    reading,
    write_csv,
)
from shoal.settings import Plain, Settings, dump_settings, load_settings, read_yaml

LOCK = "run.lock"

# Seconds to wait for a lock; `check_not_locked` of another process takes it for a moment
WAIT_S = 0.5

THUMBNAILS = "thumbnails.bin"

# The numbers in it: the ends of the thumbnails, and how many ends there are
NUMBER = np.dtype("<u8")

# The best weights so far, during training
SNAPSHOTS = "best-*.safetensors"

# Patterns of the files that only resuming needs
CHECKPOINTS = ("checkpoint.safetensors", "evaluations.json", SNAPSHOTS)

# Patterns of the files of a run; `force` keeps unknown files
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
    THUMBNAILS,
    "report.html",
    TABLE,
    "categories.csv",
    "skipped.csv",
    "map.npz",
    "choice.json",
    "evaluations.json",
    "model.json",
    "train.log",
    "checkpoint.safetensors",
    "comparison.json",
    "held_out.csv",
    "compare.html",
    SNAPSHOTS,
)

# Incomplete files of a killed run
LEFTOVERS = ".*.tmp"

# Folders of the training runs of a comparison; removed at the end
TRIALS = "trial-*"

# The review of a run; kept when the run is removed, so that it can be replayed on the next one
REVIEW_FILES = ("review*.jsonl", ".review.jsonl.lock")

# The folder of a comparison that contains one run per method
COMPARED = "methods"

# The folders in a run that may contain its other result
RESULTS = ("frozen", "trained")

RECORDED_PACKAGES = (
    *("shoal", "torch", "openvino", "numpy", "scipy", "scikit-learn", "pillow", "transformers"),
)


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Lock a run folder, created if missing; refuse one that another process has locked.

    The folder is removed if it is empty in the end. The lock is reentrant.
    """
    file = Path(folder).absolute() / LOCK
    try:
        with _held(file, folder, WAIT_S):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty
            file.parent.rmdir()


def locked_file(file: Path, wait_s: float = WAIT_S) -> contextlib.AbstractContextManager[None]:
    """Lock a file by a hidden file next to it; refuse one that another process has locked."""
    return _held(file.absolute().with_name(f".{file.name}.lock"), file, wait_s)


def check_not_locked(folder: Path | str) -> None:
    file = Path(folder).absolute() / LOCK
    if file.is_file():
        # A folder that is not writable is refused elsewhere.
        with contextlib.suppress(OSError), _refused(file, folder), _lock(file).acquire(WAIT_S):
            pass


@contextlib.contextmanager
def _held(file: Path, path: Path | str, wait_s: float) -> Iterator[None]:
    make_folder(file.parent)
    lock = _lock(file)
    with writing(file), _refused(file, path):
        lock.acquire(wait_s)
    try:
        if not isinstance(lock, SoftFileLock):  # a soft lock names its process itself
            with contextlib.suppress(OSError):  # Windows refuses writing to a locked file
                file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        if lock.lock_counter == 1:
            with contextlib.suppress(OSError):  # filelock tolerates a removed file
                file.unlink()
        lock.release()


def _lock(file: Path) -> BaseFileLock:
    return FileLock(file, poll_interval=0.01, is_singleton=True)


@contextlib.contextmanager
def _refused(file: Path, path: Path | str) -> Iterator[None]:
    """Convert a timeout to an error that names the process with the lock."""
    try:
        yield
    except Timeout as error:
        try:
            holder = " ".join(file.read_text(errors="replace").split())[:200]
        except OSError:
            holder = ""
        raise UsageError(
            f"{path}: is being written by {holder or 'another process'}; wait until it ends, or "
            "choose another path"
        ) from error


class Run:
    """A run folder; its files are read on access.

    `Run.create` makes one, `Run.open` opens a finished one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path | str, *, checks_tables: bool = True) -> Self:
        """Open a finished run for reading; with `checks_tables` refuse inconsistent tables."""
        run = cls(Path(path))
        if run.has("comparison.json"):
            raise DataError(f"{run.path}: is a comparison; give a run in its folder {COMPARED}")
        if not run.is_finished:
            check_not_locked(run.path)  # another process is still writing it
            if not run.has("provenance.json"):
                raise DataError(
                    f"{run.path}: not a run folder (no provenance.json); give the folder of a run"
                )
            # Only runs on images can be resumed; embeddings are clustered again.
            option = "with --resume" if "fingerprint" in run.provenance else "again"
            raise DataError(f"{run.path}: the run was not finished; run the same command {option}")
        if checks_tables:
            check_agreement(run.path)
        return run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def has(self, part: str) -> bool:
        return (self.path / part).is_file()

    @property
    def is_finished(self) -> bool:
        return (self.path / "provenance.json").is_file() and bool(self.provenance.get("finished"))

    @property
    def is_stopped(self) -> bool:
        """Whether the run is finished, but its training was stopped early."""
        return self.is_finished and bool(self.provenance.get("stopped_early"))

    @property
    def is_complete(self) -> bool:
        """Whether the run is finished and its training was not stopped early."""
        return self.is_finished and not self.is_stopped

    @property
    def provenance(self) -> Plain:
        """Versions, device, seed, input fingerprint and times."""
        return self.json("provenance")

    @property
    def config(self) -> Plain:
        """The resolved settings."""
        file = self.path / "config.yaml"
        with reading(file):
            settings = dict(read_yaml(file))
        if not settings:
            raise damaged(file, "expected settings by name")
        return settings

    def config_as(self, cls: type[Settings]) -> Settings:
        """Return the resolved settings as an object of a settings class."""
        file = self.path / "config.yaml"
        with reading(file):
            return load_settings(cls, file)

    def json(self, name: str) -> Plain:
        return read_object(self.path / f"{name}.json")

    @property
    def metrics(self) -> list[Plain]:
        """The rows of metrics.jsonl, one per epoch."""
        file = self.path / "metrics.jsonl"
        return read_objects(file) if file.exists() else []

    @property
    def assignments(self) -> list[Assignment]:
        """A row per image, in the order of the embeddings."""
        return read_rows(Assignment, self.path / TABLE)

    @property
    def categories(self) -> list[Category]:
        """A row per category, known ones first."""
        return read_rows(Category, self.path / "categories.csv")

    @property
    def n_clusters(self) -> int:
        """The number of categories with images."""
        return self.n_known + self.n_novel

    @property
    def n_clusters_interval(self) -> tuple[int, int] | None:
        """The 80 % interval of the number of categories; None if K was not estimated."""
        ends = self.json("estimate").get("interval") if self.has("estimate.json") else None
        return None if ends is None else (ends[0], ends[1])

    @property
    def n_known(self) -> int:
        """The number of known categories with images."""
        return sum(row.size > 0 and not row.is_novel for row in self.categories)

    @property
    def n_novel(self) -> int:
        """The number of novel categories with images."""
        return sum(row.size > 0 and row.is_novel for row in self.categories)

    def array(self, name: str) -> NDArray[Any]:
        """Map `<name>.npy` into memory, read-only."""
        return read_array(self.path / f"{name}.npy")

    @property
    def clustered(self) -> str:
        """The array that clusters were found in: shifted if the method shifts, else embeddings."""
        return "shifted" if self.has("shifted.npy") else "embeddings"

    def embeddings(self) -> NDArray[Any]:
        """Map embeddings.npy into memory: (N, D), finite, a row per assignment."""
        ids = read_columns(Assignment, self.path / TABLE, ["category_id"])["category_id"]
        return read_vectors(self.path / "embeddings.npy", len(ids))

    def thumbnails(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Yield the thumbnails of some rows; the file is mapped into memory."""
        file = self.path / THUMBNAILS
        with reading(file):
            content = np.memmap(file, mode="r")
            table = content[-NUMBER.itemsize :].tobytes()
            n_ends = int.from_bytes(table, "little")
            start = len(content) - (n_ends + 1) * NUMBER.itemsize
            ends = np.frombuffer(content, NUMBER, n_ends, start)
            for row in rows:
                yield content[ends[row] : ends[row + 1]].tobytes()

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> Self:
        """Create the folder, or reuse an empty or unfinished one; `force` clears a finished one."""
        run = cls(Path(path))
        run.check_free(force=force)
        if force:
            run._clear()
        run.unlink_inside()
        for file in run._matching((LEFTOVERS,)):
            file.unlink(missing_ok=True)
        make_folder(run.path)
        return run

    def check_free(self, *, force: bool = False) -> None:
        """Refuse a folder that `create` would refuse, without changing anything."""
        # With force a damaged run may be cleared too, so it is not read.
        if not force and self.is_finished:
            resume = "--resume to continue its training, " if self.is_stopped else ""
            raise UsageError(
                f"{self.path}: contains a finished run; give {resume}--force to overwrite it, or "
                "another --out"
            )
        paths = (self.path, *self.path.absolute().parents)
        existing = next(path for path in paths if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{existing}: is a file, expected a folder; choose another path")
        if existing == self.path and self._has_other_files() and not self.has("provenance.json"):
            raise UsageError(
                f"{existing}: contains files but no run (no provenance.json); choose an empty or "
                "new folder"
            )
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{existing}: is not writable; choose another path")

    def abandon(self) -> None:
        """Remove a run, and its folder if nothing else is in it."""
        self._clear()
        with contextlib.suppress(OSError):  # not empty
            self.path.rmdir()

    def write_json(self, name: str, content: Plain) -> None:
        write_text(
            self.path / f"{name}.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        )

    def drop(self, *parts: str) -> None:
        for part in parts:
            (self.path / part).unlink(missing_ok=True)

    def copy_model(self, into: "Run") -> None:
        """Copy the best snapshot of training, if any, to the model.safetensors of a run.

        A killed run may leave older snapshots too; the best one has the highest epoch.
        """
        snapshots = sorted(
            self.path.glob(SNAPSHOTS), key=lambda file: int(file.stem.partition("-")[2])
        )
        if snapshots:
            _copy(snapshots[-1], into.path / "model.safetensors")

    def share(self, part: str, other: "Run") -> None:
        """Link a file into another run; copy it if the file system has no hard links."""
        target = other.path / part
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(self.path / part)
        except OSError:
            _copy(self.path / part, target)

    @property
    def has_checkpoints(self) -> bool:
        return bool(self._matching((*CHECKPOINTS, TRIALS)))

    def drop_checkpoints(self) -> None:
        for file in self._matching(CHECKPOINTS):
            file.unlink(missing_ok=True)
        self._drop_trials()

    def unlink_inside(self) -> None:
        """Remove symbolic links named like nested runs, without touching their targets."""
        for path in self._matching((*RESULTS, COMPARED, TRIALS)):
            if path.is_symlink():
                path.unlink()

    def _drop_trials(self) -> None:
        for path in self.path.glob(TRIALS):
            if path.is_dir():
                Run(path).abandon()

    def _matching(self, patterns: Iterable[str]) -> set[Path]:
        """Return the files with names that match; `glob` would omit dangling links."""
        if not self.path.is_dir():
            return set()
        is_match = re.compile("|".join(map(fnmatch.translate, patterns))).match
        return {file for file in self.path.iterdir() if is_match(file.name)}

    def _has_other_files(self) -> bool:
        """Return whether the folder has files other than leftovers of a killed run."""
        return bool({*self.path.iterdir()} - self._matching((LEFTOVERS, *REVIEW_FILES, LOCK)))

    def _clear(self) -> None:
        """Remove the files of a run and of its nested runs, and nothing else."""
        self.unlink_inside()
        if self.has("provenance.json"):
            # If the process is killed now, the folder is an unfinished run.
            self.write_json("provenance", {"finished": None})
        for file in self._matching((*PARTS, LEFTOVERS)):
            if file.name != "provenance.json":
                file.unlink(missing_ok=True)
        self._drop_trials()
        compared = self.path / COMPARED
        for path in (*(self.path / name for name in RESULTS), *compared.glob("*")):
            inside = Run(path)
            is_folder = path.is_dir() and not path.is_symlink()
            if is_folder and (inside.has("provenance.json") or not inside._has_other_files()):
                inside.abandon()
        with contextlib.suppress(OSError):  # missing or not empty
            compared.rmdir()
        self.drop("provenance.json")

    def start(self, settings: Any, *, seed: int, device: str, command: str, **more: Any) -> None:
        """Write config.yaml and provenance.json, which marks the folder as a run."""
        provenance = {
            "command": command,
            "seed": seed,
            "device": device,
            "started": _now(),
            "finished": None,
        }
        self.write_json("provenance", {**provenance, **more, **environment()})
        write_text(self.path / "config.yaml", dump_settings(settings))

    def note(self, **more: Any) -> None:
        self.write_json("provenance", {**self.provenance, **more})

    def finish(self) -> None:
        """Mark the run as finished; called last."""
        self.note(finished=_now())

    def log(self, text: str) -> None:
        path = self.path / "train.log"
        with writing(path), open(path, "a", encoding="utf-8", opener=open_no_follow) as file:
            file.write(f"{_now()}  {shown(text)}\n")

    def write_assignments(self, rows: Iterable[Assignment]) -> None:
        write_csv(Assignment, list(rows), self.path / TABLE)

    def write_categories(self, rows: Iterable[Category]) -> None:
        write_csv(Category, list(rows), self.path / "categories.csv")

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write `<name>.npy`, in blocks."""
        with atomic_file(self.path / f"{name}.npy") as file:
            # Not the file itself: NumPy would use the file descriptor and lose the errno of a
            # full disk.
            np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)

    def write_thumbnails(self, images: Iterable[bytes]) -> None:
        """Write thumbnails.bin: a small WebP per row, in row order."""
        ends = [0]
        with atomic_file(self.path / THUMBNAILS) as file:
            for image in images:
                file.write(image)
                ends.append(ends[-1] + len(image))
            file.write(np.array([*ends, len(ends)], NUMBER).tobytes())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@cache  # reading the metadata of packages is slow
def environment() -> Plain:
    """Return the versions of Python, the platform and packages, for provenance.json."""
    packages: dict[str, str | None] = {}
    for name in RECORDED_PACKAGES:
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
