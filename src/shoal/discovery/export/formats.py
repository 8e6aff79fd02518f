"""The formats by name, and the one way to export a run."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from shoal.data.readers.folders import refuse_address
from shoal.data.readers.originals import is_stored
from shoal.discovery.export.export_job import GivenLabels, Job, disagreeing, settle
from shoal.discovery.export.file_names import Linking
from shoal.discovery.export.imagefolder import to_hugging_face, to_imagefolder
from shoal.discovery.export.table_files import (
    spreadsheet_steps,
    to_projector,
    to_spreadsheets,
    to_tables,
)
from shoal.discovery.export.tools import label_studio_steps, to_fiftyone, to_label_studio
from shoal.errors import DataError, UnknownName, UsageError
from shoal.files import absolute_path, make_folder, writing
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run

DRAFT = ".export.tmp"
"""The folder in which an export is made; what is whole moves out of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format and what it needs."""

    write: Callable[[Job], None]
    shows_images: bool
    """Whether it holds links to the images, which then must be where they were."""
    about: str
    names_folder: bool = False
    """Whether it names the folder of the images, without links to them."""
    keeps_both: bool = False
    """Whether it holds the given label and the category of an image, so that nobody has to
    choose."""
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
    notes: tuple[str, ...] = ()
    """What of the review is not in it."""


FORMATS: dict[str, Format] = {
    "imagefolder": Format(write=to_imagefolder, shows_images=True, about="a folder per category"),
    "hf": Format(
        write=to_hugging_face,
        shows_images=True,
        about="images and metadata.csv for Hugging Face datasets",
    ),
    "csv": Format(
        write=to_tables, shows_images=False, about="assignments and categories as tables"
    ),
    "spreadsheet": Format(
        write=to_spreadsheets,
        shows_images=False,
        about="the same tables with nothing in them that a spreadsheet takes for a formula",
        steps=spreadsheet_steps,
    ),
    "labelstudio": Format(
        write=to_label_studio,
        shows_images=False,
        about="tasks for Label Studio",
        names_folder=True,
        keeps_both=True,
        steps=label_studio_steps,
    ),
    "fiftyone": Format(
        write=to_fiftyone, shows_images=True, about="an image classification dataset of FiftyOne"
    ),
    "projector": Format(
        write=to_projector, shows_images=False, about="vectors for the embedding projector"
    ),
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

    Images are linked to where the run found them, or below `images` where they have moved; they are
    never moved or changed themselves. An image that came with a label is exported with that label,
    unless `given_labels` is 'predicted'; Label Studio gets both.
    """
    if format_name not in FORMATS:
        raise UnknownName("format", format_name, FORMATS)
    if given_labels not in get_args(GivenLabels):
        raise UsageError(f"given labels: found {given_labels!r}, expected keep or predicted")
    chosen = FORMATS[format_name]
    target = Path(out)
    _refuse_unused(format_name, images, linking, given_labels)
    root = _root(run, images) if chosen.shows_images or images is not None else _origin(run)
    if target.is_dir() and {entry.name for entry in target.iterdir()} - {DRAFT}:
        raise UsageError(f"{target}: holds files already; choose an empty or new folder")
    if chosen.shows_images and root is not None:
        _refuse_among_images(target, root, run.provenance.get("folders") or ())
    reviewed = ReviewedRun.of(run)
    rows, categories = settle(reviewed, given_labels)
    job = Job(
        run=reviewed, rows=rows, categories=categories, root=root, out=target, linking=linking
    )
    with _draft(target) as draft:
        chosen.write(replace(job, out=draft))
    notes: tuple[str, ...] = ()
    if reviewed.review is not None and reviewed.review.log.note:
        notes = (reviewed.review.log.note,)
    return Exported(
        folder=target,
        n_disagreeing=len(disagreeing(reviewed)),
        steps=chosen.steps(job),
        notes=notes,
    )


def _refuse_unused(
    name: str, images: Path | str | None, linking: Linking, given_labels: GivenLabels
) -> None:
    """Refuse what a format has no use for."""
    chosen = FORMATS[name]
    if linking == "copy" and not chosen.shows_images:
        raise UsageError(f"copy: {name} holds no images; leave out --copy")
    if images is not None and not (chosen.shows_images or chosen.names_folder):
        raise UsageError(f"images: {name} does not say where images are; leave out --images")
    if given_labels == "predicted" and chosen.keeps_both:
        raise UsageError(
            f"given labels: {name} holds labels and categories; leave out --given-labels"
        )


def _refuse_among_images(target: Path, root: Path, folders: Sequence[str]) -> None:
    """Refuse to put images where the next discovery would find them beside those they were made
    from."""
    for source in (root / folder for folder in folders):
        if target.resolve().is_relative_to(source.resolve()):
            raise UsageError(
                f"{target}: lies in {source}, where the next `shoal discover` would find every "
                "image twice; choose a "
                "folder beside it"
            )


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A folder inside `target` whose content moves there when it is whole; otherwise nothing of it
    stays."""
    is_new = not target.exists()
    draft = target / DRAFT
    shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
    make_folder(target)  # by itself, so that what is in the way is named as the user knows it
    try:
        make_folder(draft)
        yield draft
        for entry in sorted(draft.iterdir()):
            with writing(target / entry.name):
                entry.rename(target / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds the export, or was there before
            if is_new:
                target.rmdir()


def _origin(run: Run) -> Path | None:
    root = str(run.provenance.get("root") or "")
    if not root or is_stored(root):
        return None
    return absolute_path(root)


def _root(run: Run, images: Path | str | None) -> Path:
    given = str(images or run.provenance.get("root") or "")
    if not given:
        raise UsageError(
            f"{run.path}: was not made from image files, so there is nothing to link; "
            "export it to csv, labelstudio or projector, or say with --images which folder holds "
            "them"
        )
    if images is None and is_stored(given):
        raise UsageError(
            f"{run.path}: its images lie in {given}, not in a folder of this machine, so there is "
            "nothing to link; "
            "copy them to a folder and say with --images which, or export to csv, labelstudio or "
            "projector"
        )
    refuse_address(given)
    root = absolute_path(given)
    if not root.is_dir():
        raise DataError(
            f"{root}: the folder of the run's images is not there; say with --images where it is "
            "now"
        )
    return root
