"""The export formats by name, and the function that exports a run."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.data.readers.folders import refuse_address
from shoal.data.readers.shards import is_stored_source
from shoal.discovery.export.annotations import (
    label_studio_steps,
    to_coco,
    to_fiftyone,
    to_label_studio,
    to_yolo,
)
from shoal.discovery.export.export_job import ExportJob, apply_labels, find_disagreeing
from shoal.discovery.export.imagefolder import to_hugging_face, to_imagefolder
from shoal.discovery.export.table_files import (
    to_dendrogram,
    to_newick,
    to_projector,
    to_spreadsheets,
    to_tables,
    write_notes,
)
from shoal.errors import UnknownName, UsageError
from shoal.files import AnyPath, absolute_path, make_folder
from shoal.report.tree_list import categories_in_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run

DRAFT = ".export.tmp"
"""The folder in which an export is written; when complete, its content is moved out of it."""

FORMATS: dict[str, Callable[[ExportJob], None]] = {
    "imagefolder": to_imagefolder,
    "hf": to_hugging_face,
    "csv": to_tables,
    "spreadsheet": to_spreadsheets,
    "labelstudio": to_label_studio,
    "fiftyone": to_fiftyone,
    "coco": to_coco,
    "yolo": to_yolo,
    "projector": to_projector,
    "newick": to_newick,
    "dendrogram": to_dendrogram,
}

LINKING = ("imagefolder", "hf", "fiftyone", "coco", "yolo")
"""Formats that link or open the images, which therefore must exist."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The result of an export."""

    folder: Path
    n_disagreeing: int
    """Labeled images that the run has put into another category."""
    notes: tuple[str, ...]
    """A note on an incomplete review, and instructions for the other program, line by line."""


def export_run(
    run: Run,
    format_name: str,
    out: Path | str,
    *,
    images: AnyPath | None = None,
    copy: bool = False,
) -> Exported:
    """Export a run for another program into the empty or new folder `out`.

    Images are linked to where the run found them, or to `images` if they have moved; `copy` copies
    them. They are never moved or changed. A labeled image is exported with its label; Label Studio
    gets its category too.
    """
    if format_name not in FORMATS:
        raise UnknownName("format", format_name, FORMATS)
    target = Path(out)
    root = None
    where = str(images or run.provenance.get("root") or "")
    if images is not None or (where and not is_stored_source(where)):
        refuse_address(where)
        root = absolute_path(where)
    if target.is_dir() and {entry.name for entry in target.iterdir()} - {DRAFT}:
        raise UsageError(f"{target}: is not empty; choose an empty or new folder")
    if format_name in LINKING and root is not None:
        for folder in run.provenance.get("folders") or ():
            if target.resolve().is_relative_to((root / folder).resolve()):
                raise UsageError(
                    f"{target}: is inside {root / folder}, where the next `shoal discover` would "
                    "find every image twice; choose a folder outside it"
                )
    reviewed = ReviewedRun.of(run)
    disagreeing = find_disagreeing(reviewed)
    job = ExportJob(
        run=reviewed,
        rows=reviewed.assignments,
        categories=categories_in_tree(reviewed),
        root=root,
        out=target,
        copy=copy,
    )
    if disagreeing:
        job = apply_labels(job, disagreeing)
    with _draft(target) as draft:
        FORMATS[format_name](replace(job, out=draft))
        write_notes(reviewed, draft)
    notes: list[str] = []
    if reviewed.review is not None and reviewed.review.log.note:
        notes.append(reviewed.review.log.note)
    if format_name == "labelstudio":
        notes += label_studio_steps(job)
    return Exported(folder=target, n_disagreeing=len(disagreeing), notes=tuple(notes))


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Yield a folder whose content is moved to `target` at the end, or removed after an error."""
    is_new = not target.exists()
    draft = target / DRAFT
    shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
    make_folder(target)  # first, so that an error names it and not the draft
    try:
        make_folder(draft)
        yield draft
        for entry in draft.iterdir():
            entry.rename(target / entry.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            if is_new:
                target.rmdir()
