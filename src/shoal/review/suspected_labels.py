"""The labels that images came with: which look wrong, and which a person has contradicted. N images."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.runs import UNSURE_BELOW

JUDGED_BY = ("label_given", "category", "confidence", "nearest_known", "second_category")
"""The columns of assignments.csv that a label is judged by."""


def speaks_for(columns: Mapping[str, Any]) -> list[str]:
    """(N,) the category that the images around a labeled one speak for; empty for an unlabeled one.

    A run puts labeled images into the categories of their labels, so what it found says nothing of a label. But where
    few of the nearest images are in that category, and another known one is nearer, the label looks wrong: then the
    images around speak for the second choice. `columns` are those of assignments.csv as the run wrote them.
    """
    rows = zip(*(columns[name] for name in JUDGED_BY), strict=True)
    return [_around(given, *row) if given else "" for given, *row in rows]


def _around(given: str, category: str, confidence: float, nearest: str, second: str) -> str:
    is_doubted = confidence < UNSURE_BELOW and nearest not in ("", given)
    return second if category == given and is_doubted and second else category


def suspected(
    columns: Mapping[str, Any], statuses: Sequence[str], names: Mapping[str, str]
) -> dict[int, str]:
    """The rows whose label looks wrong and that nobody has decided on, each with the category that speaks against it.

    `names` are today's of the run's categories that have another by now.
    """
    today = [names.get(name, name) for name in speaks_for(columns)]
    given = [names.get(name, name) for name in columns["label_given"]]
    return {
        row: category
        for row, (label, category, status) in enumerate(zip(given, today, statuses, strict=True))
        if label and category != label and status == "predicted"
    }
