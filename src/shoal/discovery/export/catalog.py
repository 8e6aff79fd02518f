"""The formats by name, and the one way to export a run."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from shoal.discovery.export.imagefolder import to_hugging_face, to_imagefolder
from shoal.discovery.export.job import GivenLabels, Job, disagreeing, settle
from shoal.discovery.export.names import Linking
from shoal.discovery.export.tables import to_projector, to_tables
from shoal.discovery.export.tools import label_studio_steps, to_fiftyone, to_label_studio
from shoal.errors import DataError, UnknownName, UsageError
from shoal.files import make_folder
from shoal.runs import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format and what it needs."""

    write: Callable[[Job], None]
    shows_images: bool
    """Whether it holds links to the images, which then must be where they were."""
    about: str
    steps: Callable[[Job], tuple[str, ...]] = lambda _job: ()
    """What to do in the other program, line by line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written, and what to know about it."""

    folder: Path
    n_disagreeing: int
    """Images that came with a label and were put into another category."""
    steps: tuple[str, ...]
    """What to do in the other program."""


FORMATS: dict[str, Format] = {
    "imagefolder": Format(write=to_imagefolder, shows_images=True, about="a folder per category"),
    "hf": Format(write=to_hugging_face, shows_images=True, about="images and metadata.csv for Hugging Face datasets"),
    "csv": Format(write=to_tables, shows_images=False, about="assignments and categories as tables"),
    "labelstudio": Format(
        write=to_label_studio, shows_images=False, about="tasks for Label Studio", steps=label_studio_steps
    ),
    "fiftyone": Format(write=to_fiftyone, shows_images=True, about="an image classification dataset of FiftyOne"),
    "projector": Format(write=to_projector, shows_images=False, about="vectors for the embedding projector"),
}


def export_run(
    run: Run,
    format_name: str,
    out: Path | str,
    *,
    images: Path | str | None = None,
    linking: Linking = "link",
    given_labels: GivenLabels = "keep",
) -> Exported:
    """Write a run for another program into the empty or new folder `out`.

    Images are linked to where the run found them, or below `images` where they have moved; they are never moved or
    changed themselves. An image that came with a label is exported with that label, unless `given_labels` is
    'predicted'; Label Studio gets both.
    """
    if format_name not in FORMATS:
        raise UnknownName("format", format_name, FORMATS)
    if given_labels not in get_args(GivenLabels):
        raise UsageError(f"given labels: found {given_labels!r}, expected keep or predicted")
    chosen, target = FORMATS[format_name], Path(out)
    root = _root(run, images) if chosen.shows_images or images is not None else _origin(run)
    if target.is_dir() and any(target.iterdir()):
        raise UsageError(f"{target}: holds files already; choose an empty or new folder")
    make_folder(target)
    rows, categories = settle(run, given_labels)
    job = Job(run=run, rows=rows, categories=categories, root=root, out=target, linking=linking)
    chosen.write(job)
    return Exported(folder=target, n_disagreeing=len(disagreeing(run)), steps=chosen.steps(job))


def _origin(run: Run) -> Path | None:
    root = str(run.provenance.get("root") or "")
    return Path(os.path.abspath(root)) if root else None  # noqa: PTH100


def _root(run: Run, images: Path | str | None) -> Path:
    given = str(images) if images is not None else str(run.provenance.get("root") or "")
    if not given:
        raise UsageError(
            f"{run.path}: was not made from image files, so there is nothing to link; "
            "export it to csv, labelstudio or projector, or say with --images which folder holds them"
        )
    root = Path(os.path.abspath(given))  # noqa: PTH100  (resolve() would rename what lies behind a link)
    if not root.is_dir():
        raise DataError(f"{root}: the folder of the run's images is not there; say with --images where it is now")
    return root
