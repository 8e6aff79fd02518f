"""The labels that images came with: which of them look wrong. N images."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.runs import UNSURE_BELOW

JUDGED_BY = ("label_given", "category", "confidence", "nearest_known", "second_category")
"""The columns of assignments.csv that a label is judged by."""


def speaks_for(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """(N,) the category that the images around a labeled one speak for; empty for an unlabeled one.

    A run puts labeled images into the categories of their labels, so what it found says nothing of
    a label. But where few of the nearest images are in that category, and another known one is
    nearer, the label looks wrong: then the images around speak for the second choice. `columns` are
    those of assignments.csv as the run wrote them.
    """
    around = []
    rows = zip(*(columns[name] for name in JUDGED_BY), strict=True)
    for given, category, confidence, nearest, second in rows:
        is_doubted = confidence < UNSURE_BELOW and nearest not in ("", given)
        if not given:
            around.append("")
        elif category == given and is_doubted and second:
            around.append(second)
        else:
            around.append(category)
    return around


def suspected(
    columns: Mapping[str, Sequence[Any]], statuses: Sequence[str], names: Mapping[str, str]
) -> dict[int, str]:
    """The rows whose label looks wrong and nobody has decided on, and what speaks against it.

    `names` are today's of the run's categories that have another by now.
    """
    found = {}
    rows = zip(columns["label_given"], speaks_for(columns), statuses, strict=True)
    for row, (given, around, status) in enumerate(rows):
        category = names.get(around, around)
        if given and category != names.get(given, given) and status == "predicted":
            found[row] = category
    return found
