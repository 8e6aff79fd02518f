"""The run folder: everything that a run computed, and all that reports and reviews read.

Imports no torch.
"""

from shoal.runs.run import (
    COMPARED,
    LEFTOVERS,
    LOCK,
    PARTS,
    RESULTS,
    SNAPSHOTS,
    THUMBNAILS,
    Run,
    check_not_locked,
    environment,
    locked,
    locked_file,
)
from shoal.runs.tables import (
    DECIMALS,
    MIXED_FROM,
    NO_CATEGORY,
    TABLE,
    UNCERTAIN_BELOW,
    UNREADABLE,
    Assignment,
    Category,
    check_columns,
    column,
    csv_text,
    damaged,
    has_boxes,
    read_arrays,
    read_columns,
    read_rows,
    read_vectors,
    reading,
    to_csv,
    to_rows,
    write_csv,
)
