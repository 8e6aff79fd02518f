"""Exports without images: tables, the TensorBoard embedding projector, the tree of categories."""

import csv
import io
import re
from pathlib import Path

from shoal.discovery.export.export_job import ExportJob
from shoal.discovery.export.imagefolder import REVIEW_COLUMNS
from shoal.files import atomic_file, write_text
from shoal.report.figures import dendrogram
from shoal.report.style import file_bytes
from shoal.report.tree_list import category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, csv_text, to_csv, write_csv

TAG = re.compile(r"(?<!\S)#\S+")
"""A tag in a note."""

FORMULA = re.compile(r"\s*[-=+@]|[\t\r]")
"""The start of what a spreadsheet reads as a formula."""


def to_tables(job: ExportJob) -> None:
    write_csv(Assignment, job.rows, job.out / "assignments.csv")
    write_text(job.out / "categories.csv", to_csv(Category, job.categories))


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
