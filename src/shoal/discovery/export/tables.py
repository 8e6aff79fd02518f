"""Exports without images: plain tables, and the TensorBoard embedding projector."""

from pathlib import Path
from typing import Any

from shoal.discovery.export.names import Linking
from shoal.files import write_text
from shoal.runs import Assignment, Category, Run, to_csv, to_parquet


def to_tables(run: Run, root: Path | None, out: Path, linking: Linking) -> None:
    """assignments.csv and categories.csv, and assignments.parquet where pyarrow is installed."""
    write_text(out / "assignments.csv", to_csv(Assignment, run.assignments))
    write_text(out / "categories.csv", to_csv(Category, run.categories))
    to_parquet(Assignment, run.assignments, out / "assignments.parquet")


def to_projector(run: Run, root: Path | None, out: Path, linking: Linking) -> None:
    """vectors.tsv and metadata.tsv, which projector.tensorflow.org and TensorBoard load as they are."""
    vectors = run.array("embeddings")
    write_text(out / "vectors.tsv", "".join("\t".join(f"{x:.6g}" for x in row) + "\n" for row in vectors))
    header = ("path", "category", "label_given", "is_novel", "confidence")
    lines = [header, *([getattr(row, name) for name in header] for row in run.assignments)]
    write_text(out / "metadata.tsv", "".join("\t".join(map(_cell, line)) + "\n" for line in lines))


def _cell(value: Any) -> str:
    """Text on one line without tabs, which the format has no way to write."""
    return " ".join(str(value).split()) if isinstance(value, str) else f"{value}"
