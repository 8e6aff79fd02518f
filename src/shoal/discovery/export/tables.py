"""Exports without images: plain tables, and the TensorBoard embedding projector."""

from typing import Any

from shoal.discovery.export.job import Job
from shoal.files import write_text
from shoal.runs import Assignment, Category, to_csv, to_parquet


def to_tables(job: Job) -> None:
    """assignments.csv and categories.csv, and assignments.parquet where pyarrow is installed."""
    write_text(job.out / "assignments.csv", to_csv(Assignment, job.rows))
    write_text(job.out / "categories.csv", to_csv(Category, job.categories))
    to_parquet(Assignment, job.rows, job.out / "assignments.parquet")


def to_projector(job: Job) -> None:
    """vectors.tsv and metadata.tsv, which projector.tensorflow.org and TensorBoard load as they are."""
    vectors = job.run.embeddings()
    write_text(job.out / "vectors.tsv", "".join("\t".join(f"{x:.6g}" for x in row) + "\n" for row in vectors))
    header = ("path", "category", "label_given", "is_novel", "confidence")
    lines = [header, *([getattr(row, name) for name in header] for row in job.rows)]
    write_text(job.out / "metadata.tsv", "".join("\t".join(map(_cell, line)) + "\n" for line in lines))


def _cell(value: Any) -> str:
    """Text on one line without tabs, which the format has no way to write."""
    return " ".join(str(value).split()) if isinstance(value, str) else f"{value}"
