"""The folder that a run takes: whether it is free, which files in it are a run's own, and how it is cleared."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from shoal.errors import UsageError
from shoal.files import atomic_file, make_folder, write_text
from shoal.runs.assignment_table import TABLE_PARTS
from shoal.runs.lock import LOCK
from shoal.runs.thumbnails import THUMBNAIL_PARTS
from shoal.runs.view import COMPARED, RunView

PARTS = (
    *(
        "config.yaml",
        "provenance.json",
        "metrics.jsonl",
        "estimate.json",
        "shifts.json",
        "accuracy.json",
    ),
    *("calibration.json", "changes.json"),
    *(
        "model.safetensors",
        "embeddings.npy",
        "shifted.npy",
        "frozen.npy",
        "tree.npy",
        "thumbnails.zip",
        "report.html",
    ),
    *("assignments.csv", "assignments.parquet", "categories.csv", "skipped.csv", "map.npz"),
    *(
        "choice.json",
        "judged.json",
        "plan.json",
        "model.json",
        "train.log",
        "checkpoint.safetensors",
    ),
    *("comparison.json", "kept.csv", "compare.html"),
)
"""The files a run may hold; with `force` these, parts of large ones, snapshots and TensorBoard's events are removed and
nothing else."""

SNAPSHOTS = "best-*.safetensors"
"""The best weights so far, while training goes on."""

EVENTS = "events.out.tfevents.*"
"""What TensorBoard reads."""

LEFTOVERS = (".*.tmp", "tokens.npy.*", "views.npy.*")
"""What a killed run leaves behind: files half written, and the trunk's tokens."""

TRIALS = "trial-*"
"""Folders of trainings from which some labels are kept, to see whether training helps; removed in the end."""

OUTLIVES = ("review*.jsonl", ".review.jsonl.lock")
"""What people decided about a run: it stays when the run is removed, to be replayed onto the next one."""

ANSWERS = ("frozen", "trained")
"""The folders inside a run that may hold its other answer: without training, or with it."""


class Folder(RunView):
    """The folder of a run, finished or not."""

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> Self:
        """Make the folder, or take an empty or unfinished one; a finished run only with `force`, which clears it."""
        run = cls(Path(path))
        run.check_free(force=force)
        if force:
            run._clear()
        run.unlink_inside()
        for file in run._leftovers():
            file.unlink(missing_ok=True)
        make_folder(run.path)
        return run

    def check_free(self, *, force: bool = False) -> None:
        """Refuse a folder that `create` would not take; makes and removes nothing."""
        if (
            not force and self.is_finished
        ):  # a run that cannot be read is cleared by force like any other
            go_on = "--resume to go on with its training, " if self.is_stopped else ""
            raise UsageError(
                f"{self.path}: holds a finished run; give {go_on}--force to overwrite it, or another --out"
            )
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"{there}: is a file, expected a folder; choose another path")
        if there == self.path and self._holds_more() and not self.has("provenance.json"):
            raise UsageError(
                f"{there}: holds files but no run (no provenance.json); choose an empty or new folder"
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

    def keep_model(self, into: "Folder") -> None:
        """Copy the best snapshot of training, where there is one, to the model.safetensors of a run.

        A run that was killed may have left an older one too; the best is the last that was written.
        """
        snapshots = sorted(
            self.path.glob(SNAPSHOTS), key=lambda file: int(file.stem.partition("-")[2])
        )
        if snapshots:
            _copy(snapshots[-1], into.path / "model.safetensors")

    def share(self, part: str, other: "Folder") -> None:
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
        return (
            self.has("checkpoint.safetensors")
            or any(self.path.glob(SNAPSHOTS))
            or any(self.path.glob(TRIALS))
        )

    def drop_checkpoints(self) -> None:
        """Remove what only a resumed run would need."""
        self.drop("checkpoint.safetensors", *(file.name for file in self.path.glob(SNAPSHOTS)))
        self._drop_trials()

    def unlink_inside(self) -> None:
        """Remove links under the names of runs inside this one; what they lead to is another's."""
        for path in (*(self.path / name for name in (*ANSWERS, COMPARED)), *self.path.glob(TRIALS)):
            if path.is_symlink():
                path.unlink()

    def _drop_trials(self) -> None:
        for trial in (Folder(path) for path in self.path.glob(TRIALS) if path.is_dir()):
            trial.abandon()

    def _leftovers(self) -> set[Path]:
        return {file for pattern in LEFTOVERS for file in self.path.glob(pattern)}

    def _holds_more(self) -> bool:
        """Whether something is there that no killed run has left behind."""
        reviews = {file for pattern in OUTLIVES for file in self.path.glob(pattern)}
        return bool({*self.path.iterdir()} - self._leftovers() - reviews - {self.path / LOCK})

    def _clear(self) -> None:
        """Remove what a run has written, its other answer too, and nothing else."""
        self.unlink_inside()
        named = (
            file
            for pattern in (SNAPSHOTS, EVENTS, TABLE_PARTS, THUMBNAIL_PARTS)
            for file in self.path.glob(pattern)
        )
        own = (*(self.path / name for name in PARTS), *named)
        for file in (*own, *self._leftovers()):
            file.unlink(missing_ok=True)
        self._drop_trials()
        compared = self.path / COMPARED
        for other in (
            Folder(path) for path in (*(self.path / name for name in ANSWERS), *compared.glob("*"))
        ):
            if other.path.is_symlink():  # to a run of somebody's
                continue
            if other.path.is_dir() and (
                other.has("provenance.json") or not {*other.path.iterdir()} - other._leftovers()
            ):
                other.abandon()
        with contextlib.suppress(OSError):  # there is none, or something else is in it
            compared.rmdir()


def _copy(source: Path, target: Path) -> None:
    with atomic_file(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)
