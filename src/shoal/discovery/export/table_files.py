"""Exports without images: plain tables, and the TensorBoard embedding projector."""

import csv
import io
from typing import Any

from shoal.discovery.export.export_job import Job
from shoal.discovery.export.imagefolder import DECIDED
from shoal.files import atomic_file, write_text
from shoal.runs import Assignment, Category, csv_text, to_csv, write_csv, write_parquet
from shoal.words import count


def to_tables(job: Job) -> None:
    """assignments.csv and categories.csv and, where pyarrow is installed, assignments.parquet, a
    large one in parts."""
    write_csv(Assignment, job.rows, job.out / "assignments.csv")
    write_text(job.out / "categories.csv", to_csv(Category, job.categories))
    write_parquet(job.out, job.rows, len(job.rows))


def to_spreadsheets(job: Job) -> None:
    """The same tables for a spreadsheet: no text is taken for a formula, and accents are
    recognized."""
    for name, text in (
        ("assignments", to_csv(Assignment, job.rows)),
        ("categories", to_csv(Category, job.categories)),
    ):
        rows = [
            [_as_text(cell) for cell in row] for row in csv.reader(io.StringIO(text, newline=""))
        ]
        write_text(job.out / f"{name}.csv", f"\ufeff{csv_text(rows[0], rows[1:])}")


def spreadsheet_steps(job: Job) -> tuple[str, ...]:
    """Say what differs from the data files."""
    texts = [row.path for row in job.rows] + [category.category for category in job.categories]
    n_escaped = sum(_as_text(text) != text for text in texts)
    return (
        "texts that begin with = + - @ have an apostrophe before them, so that no spreadsheet "
        "takes them for formulas "
        f"({count(n_escaped, 'name')} here); for programs export to csv, which keeps every name",
    )


def _as_text(cell: str) -> str:
    """A cell that no spreadsheet computes: a number as it is, any other text that begins like a
    formula behind '."""
    if not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) and not cell.startswith(
        ("\t", "\r")
    ):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def to_projector(job: Job) -> None:
    """vectors.tsv and metadata.tsv, which projector.tensorflow.org and TensorBoard load as they
    are."""
    vectors = job.run.embeddings()
    with atomic_file(
        job.out / "vectors.tsv"
    ) as file:  # line by line: a million rows as text take gigabytes
        for row in vectors:
            file.write(("\t".join(f"{x:.6g}" for x in row) + "\n").encode())
    header = ("path", "category", "label_given", "is_novel", "confidence", *DECIDED)
    lines = [header, *([getattr(row, name) for name in header] for row in job.rows)]
    write_text(
        job.out / "metadata.tsv", "".join("\t".join(map(_cell, line)) + "\n" for line in lines)
    )


def _cell(value: Any) -> str:
    """Text on one line without tabs, which the format has no way to write."""
    return " ".join(str(value).split())
