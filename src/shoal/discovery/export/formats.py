"""The export formats by name, the function that exports a run, and exports without images: tables,
the TensorBoard embedding projector, the tree of categories.
"""

import contextlib
import csv
import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.data.readers.folders import local_path
from shoal.data.readers.shards import is_stored_source
from shoal.discovery.export.annotations import (
    REVIEW_COLUMNS,
    label_studio_steps,
    to_coco,
    to_fiftyone,
    to_hugging_face,
    to_imagefolder,
    to_label_studio,
    to_yolo,
)
from shoal.discovery.export.export_job import ExportJob, apply_labels, find_disagreeing
from shoal.errors import UnknownName, UsageError
from shoal.files import AnyPath, atomic_file, make_folder, write_text
from shoal.report.figures import dendrogram, file_bytes
from shoal.report.rendering import categories_in_tree, category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, Run, csv_text, to_csv, write_csv

# A tag in a note
TAG = re.compile(r"(?<!\S)#\S+")

# The start of what a spreadsheet reads as a formula
FORMULA = re.compile(r"\s*[-=+@]|[\t\r]")


# The folder in which an export is written; when complete, its content is moved out of it
DRAFT = ".export.tmp"


# Formats that link or open the images, which therefore must exist
LINKING = ("imagefolder", "hf", "fiftyone", "coco", "yolo")


def to_tables(job: ExportJob) -> None:
    write_csv(Assignment, job.rows, job.out / "assignments.csv")
    write_csv(Category, job.categories, job.out / "categories.csv")


def to_spreadsheets(job: ExportJob) -> None:
    """Write the same tables with nothing that a spreadsheet reads as a formula."""
    tables = {
        "assignments": to_csv(Assignment, job.rows),
        "categories": to_csv(Category, job.categories),
    }
    for name, text in tables.items():
        rows = csv.reader(io.StringIO(text, newline=""))
        header, *escaped = [[_escape_formula(cell) for cell in row] for row in rows]
        # The byte order mark makes Excel read UTF-8.
        write_text(job.out / f"{name}.csv", f"\ufeff{csv_text(header, escaped)}")


def _escape_formula(cell: str) -> str:
    """Return a cell with an apostrophe in front if a spreadsheet would read it as a formula."""
    if not FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def to_projector(job: ExportJob) -> None:
    """Write vectors.tsv and metadata.tsv for projector.tensorflow.org and TensorBoard."""
    with atomic_file(job.out / "vectors.tsv") as file:
        # Line by line: a million rows as text would take gigabytes.
        for vector in job.run.embeddings():
            file.write(("\t".join(f"{x:.6g}" for x in vector) + "\n").encode())
    header = ("path", "category", "label_given", "is_novel", "confidence", *REVIEW_COLUMNS)
    rows = [header, *([getattr(row, name) for name in header] for row in job.rows)]
    # The format cannot escape tabs and line breaks, so they become spaces.
    lines = ["\t".join(" ".join(str(cell).split()) for cell in row) + "\n" for row in rows]
    write_text(job.out / "metadata.tsv", "".join(lines))


def to_newick(job: ExportJob) -> None:
    """Write tree.nwk, which programs for phylogenies read."""
    write_text(job.out / "tree.nwk", f"{category_tree(job.run).newick()}\n")


def to_dendrogram(job: ExportJob) -> None:
    figure = dendrogram(job.run)
    for kind in ("svg", "png"):
        with atomic_file(job.out / f"dendrogram.{kind}") as file:
            file.write(file_bytes(figure, kind))


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


def write_notes(run: ReviewedRun, out: Path) -> None:
    """Write the notes of a review, if there are any, to notes.csv; path is empty for a category.

    Formulas are escaped, since people read this table in a spreadsheet.
    """
    if run.review is None:
        return
    state = run.review.state
    lines = [("", record.name, record.note) for record in state.categories.values()]
    for row, note in sorted(state.notes.items()):
        lines.append((state.paths[row], run.assignments[row].category, note))
    rows = [
        [*map(_escape_formula, line), " ".join(TAG.findall(line[-1]))] for line in lines if line[-1]
    ]
    if rows:
        write_text(out / "notes.csv", csv_text(("path", "category", "note", "tags"), rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The result of an export."""

    folder: Path
    # Labeled images that the run has put into another category
    n_disagreeing: int
    # A note on an incomplete review, and instructions for the other program, line by line
    notes: tuple[str, ...]


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
        root = local_path(where)
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
