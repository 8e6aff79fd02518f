"""The run folder: everything a run found, and the only thing that reports and reviews read. Imports
no torch."""

from shoal.runs.assignment_table import (
    check_columns,
    column,
    read_assignment_columns,
    table_files,
    write_parquet,
)
from shoal.runs.lock import LOCK, check_not_held, locked, locked_file
from shoal.runs.rows import (
    DECIMALS,
    MIXED_FROM,
    UNREADABLE,
    UNSURE_BELOW,
    Assignment,
    Category,
    Skip,
    csv_text,
    read_rows,
    to_csv,
    write_csv,
)
from shoal.runs.run import ANSWERS, COMPARED, PARTS, Run
from shoal.runs.run_files import Damaged, damaged, read_arrays, read_vectors, reading
from shoal.runs.thumbnails import Thumbnails, drop_thumbnails, thumbnail_files

__all__ = [
    "ANSWERS",
    "COMPARED",
    "DECIMALS",
    "LOCK",
    "MIXED_FROM",
    "PARTS",
    "UNREADABLE",
    "UNSURE_BELOW",
    "Assignment",
    "Category",
    "Damaged",
    "Run",
    "Skip",
    "Thumbnails",
    "check_columns",
    "check_not_held",
    "column",
    "csv_text",
    "damaged",
    "drop_thumbnails",
    "locked",
    "locked_file",
    "read_arrays",
    "read_assignment_columns",
    "read_rows",
    "read_vectors",
    "reading",
    "table_files",
    "thumbnail_files",
    "to_csv",
    "write_csv",
    "write_parquet",
]
