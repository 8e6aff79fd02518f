"""The run folder: everything that a run computed, and all that reports and reviews read.

Imports no torch.
"""

from shoal.runs.assignment_table import (
    NO_CATEGORY,
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
    UNCERTAIN_BELOW,
    UNREADABLE,
    Assignment,
    Category,
    Skip,
    csv_text,
    has_boxes,
    read_rows,
    to_csv,
    write_csv,
)
from shoal.runs.run import COMPARED, PARTS, RESULTS, Run, environment
from shoal.runs.run_files import damaged, read_arrays, read_vectors, reading
from shoal.runs.thumbnails import Thumbnails, drop_thumbnails, thumbnail_files

__all__ = [
    "COMPARED",
    "DECIMALS",
    "LOCK",
    "MIXED_FROM",
    "NO_CATEGORY",
    "PARTS",
    "RESULTS",
    "UNCERTAIN_BELOW",
    "UNREADABLE",
    "Assignment",
    "Category",
    "Run",
    "Skip",
    "Thumbnails",
    "check_columns",
    "check_not_held",
    "column",
    "csv_text",
    "damaged",
    "drop_thumbnails",
    "environment",
    "has_boxes",
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
