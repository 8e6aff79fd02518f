"""Given labels that look wrong. N images."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.runs import UNCERTAIN_BELOW

LABEL_COLUMNS = ("label_given", "category", "confidence", "nearest_known", "second_category")
"""The columns of assignments.csv that show whether a label is suspicious."""


def expected_labels(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return (N,) the category that the neighbors of each labeled image suggest; empty for
    unlabeled images.

    A run puts labeled images into the categories of their labels, so its categories alone say
    nothing about a label. But if few of the neighbors are in that category, and another known
    category is nearer, the neighbors suggest the second category. `columns` are those of
    assignments.csv as written by the run.
    """
    expected = []
    rows = zip(*(columns[name] for name in LABEL_COLUMNS), strict=True)
    for label, category, confidence, nearest, second in rows:
        is_doubted = confidence < UNCERTAIN_BELOW and nearest not in ("", label)
        if not label:
            expected.append("")
        elif category == label and is_doubted and second:
            expected.append(second)
        else:
            expected.append(category)
    return expected
