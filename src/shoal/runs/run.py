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
    calibration.json   what confidence rests on          changes.json     what a review of an earlier run has changed
    model.json         how model.safetensors is used: blocks trained, weight of the encoder as it came beside them

A comparison of methods is a folder of the same kind: comparison.json (its table), kept.csv (the labels that no method
saw), compare.html, and a run of each method in methods/.

A run that was trained has two answers. One stands; the other is a run of its own in the folder frozen/ or trained/.

A run of more than a million images has assignments-00000-of-00010.parquet and so on instead of assignments.csv,
and thumbnails-00000-of-00010.zip and so on instead of thumbnails.zip, a million images in each; embeddings.npy and
shifted.npy are float16 then, else float32.

Rows of arrays, assignments and thumbnails are the same images in the same order. Each file is written whole or not at
all. While a process writes to the folder there is a run.lock. A run is finished when provenance.json says when; a
finished run is never overwritten unless asked.
"""

import platform
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

import numpy as np

from shoal.files import atomic_file, open_own, write_text, writing
from shoal.runs import file_parts
from shoal.runs.assignment_table import write_assignments
from shoal.runs.folder import Folder
from shoal.runs.rows import ROWS_AT_ONCE, Assignment, Category, Skip, to_csv
from shoal.runs.thumbnails import write_thumbnails
from shoal.settings import dump_settings
from shoal.text import shown

RECORDED = ("shoal", "torch", "numpy", "scipy", "scikit-learn", "pillow", "transformers")
"""Packages whose versions go into provenance.json."""

UNIT_ROWS = ("embeddings", "shifted")
"""Arrays whose entries lie within -1 and 1. Not frozen.npy: an interrupted run goes on from it to the same bytes."""


class Run(Folder):
    """A run folder. `Run.create` makes one, `Run.open` reads a finished one."""

    def start(self, settings: Any, *, seed: int, device: str, command: str, **more: Any) -> None:
        """Write the first half of provenance.json, which makes the folder a run's, and config.yaml."""
        provenance = {
            "command": command,
            "seed": seed,
            "device": device,
            "started": _now(),
            "finished": None,
            **more,
        }
        self.write_json("provenance", {**provenance, **_environment()})
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
        """Write assignments.csv, and the same as assignments.parquet; past a million rows parts in parquet alone.

        Parquet is written where pyarrow is installed. Rows that are made one by one come with their number, `n_rows`.
        """
        write_assignments(self.path, rows, n_rows)

    def write_categories(self, rows: Iterable[Category]) -> None:
        """Write categories.csv."""
        write_text(self.path / "categories.csv", to_csv(Category, rows))

    def write_skipped(self, rows: Iterable[Skip]) -> None:
        """Write skipped.csv."""
        write_text(self.path / "skipped.csv", to_csv(Skip, rows))

    def write_array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `<name>.npy`; unit rows of more than a million images in float16, a block at a time."""
        with atomic_file(self.path / f"{name}.npy") as file:
            if name in UNIT_ROWS and len(array) > file_parts.PART_ROWS:
                header = {"descr": "<f2", "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for start in range(0, len(array), ROWS_AT_ONCE):
                    file.write(array[start : start + ROWS_AT_ONCE].astype("<f2").tobytes())
                return
            # Not the file itself: numpy would write past Python, and a full disk would come back without its errno.
            np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)

    def write_thumbnails(self, images: Iterable[bytes], n_images: int | None = None) -> None:
        """Write thumbnails.zip: the bytes of a small WebP, PNG or JPEG per row, in row order.

        Of more than a million there are parts, for which their number comes with them, as `n_images`.
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
