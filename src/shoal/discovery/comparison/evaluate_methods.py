"""Evaluate the methods of a comparison on held-out labels, which no method sees.

Shapes: J images whose labels are held out, in all repeats together.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import Bools
from shoal.clustering.matching import Accuracy, correct_images
from shoal.discovery.comparison.comparison_result import Row
from shoal.discovery.comparison.comparison_settings import title_of
from shoal.discovery.comparison.label_split import LabelSplit
from shoal.discovery.comparison.ranking import rank
from shoal.runs import COMPARED, Assignment, Run, csv_text, damaged


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedMethod:
    """A method, and the held-out images that its finished runs, one per repeat, get right."""

    row: Row
    """Its row of the table, without accuracy and rank."""
    categories: Sequence[str]
    """(J,) the category of each held-out image; empty if the method failed."""
    is_correct: Bools
    """(J,)"""


def run_folder(path: Path, method: str, repeat: int) -> Path:
    """Return the folder of the run of a method in a repeat."""
    return path / COMPARED / (method if repeat == 0 else f"{method}-{repeat + 1}")


def evaluate(path: Path, method: str, splits: Sequence[LabelSplit]) -> EvaluatedMethod | None:
    """Evaluate the runs of a method on the held-out labels; None if a run is not finished."""
    runs = [Run(run_folder(path, method, repeat)) for repeat in range(len(splits))]
    if not all(run.is_finished for run in runs):
        return None
    records = [run.provenance for run in runs]
    row = Row(
        method=method,
        title=title_of(method),
        n_clusters=tuple(record["n_clusters"] for record in records),
        seconds=sum(record["seconds"] for record in records) / len(records),
        run=str(runs[0].path),
        failed=next((record["failed"] for record in records if record.get("failed")), ""),
    )
    categories: list[str] = []
    is_correct = [np.zeros(0, dtype=bool)]
    if not row.failed:
        for run, split in zip(runs, splits, strict=True):
            rows = run.assignments
            if tuple(row.path for row in rows) != split.collection.names:
                raise damaged(run.path / "assignments.csv", "its images are not those compared")
            held_out = [rows[index] for index in split.rows]
            categories += [row.category for row in held_out]
            is_correct.append(find_correct(split, held_out))
    return EvaluatedMethod(row=row, categories=categories, is_correct=np.concatenate(is_correct))


def find_correct(split: LabelSplit, rows: Sequence[Assignment]) -> Bools:
    """Return (J,) which held-out images are correct, from their rows in a run.

    An image of a known category is correct in the category of that name. Categories held out whole
    have no name in the run: they are matched one to one with novel categories (Hungarian).
    """
    labels = np.array([split.classes[label] for label in split.labels], dtype=object)
    names = np.array([row.category for row in rows], dtype=object)
    is_found_novel = np.array([row.is_novel for row in rows])
    is_correct: Bools = np.array(names == labels, dtype=bool)
    both = split.is_novel & is_found_novel
    is_correct[both] = correct_images(labels[both], names[both])
    return is_correct


def rank_methods(
    evaluated: Sequence[EvaluatedMethod], splits: Sequence[LabelSplit], seed: int
) -> tuple[tuple[Row, ...], tuple[dict[str, Any], ...]]:
    """Return the rows of the table, best first and failed last, and each pair of methods."""
    finished = [each for each in evaluated if not each.row.failed]
    finished.sort(key=lambda each: -each.is_correct.mean())
    names = [each.row.method for each in finished]
    is_novel = np.concatenate([split.is_novel for split in splits])
    units = np.concatenate([split.units for split in splits])
    ranking = rank(np.stack([each.is_correct for each in finished]), units, is_novel, seed=seed)
    rows = []
    pairs = []
    for index, each in enumerate(finished):
        groups = (each.is_correct, each.is_correct[~is_novel], each.is_correct[is_novel])
        row = replace(
            each.row,
            accuracy=Accuracy(*map(_mean, groups)),
            interval=(float(ranking.low[index]), float(ranking.high[index])),
            ranks=ranking.rank_range(index),
            ties=tuple(compress(names, ranking.is_tie[index])),
        )
        rows.append(row)
        pairs += [
            {
                "methods": [names[index], names[other]],
                "difference": float(ranking.difference[index, other]),
                "interval": ranking.difference_interval[:, index, other].tolist(),
                "is_tie": bool(ranking.is_tie[index, other]),
            }
            for other in range(index + 1, len(finished))
        ]
    rows += [each.row for each in evaluated if each.row.failed]
    return tuple(rows), tuple(pairs)


def held_out_table(evaluated: Sequence[EvaluatedMethod], splits: Sequence[LabelSplit]) -> str:
    """Return the held-out labels as CSV, with the prediction of each method and whether it is
    correct."""
    columns: dict[str, Iterable[object]] = {
        "repeat": [number for number, split in enumerate(splits, start=1) for _ in split.rows],
        "path": [split.collection.names[row] for split in splits for row in split.rows],
        "label": [split.classes[label] for split in splits for label in split.labels],
        "is_novel": [_text(is_novel) for split in splits for is_novel in split.is_novel],
    }
    for each in evaluated:
        if not each.row.failed:
            columns[each.row.method] = each.categories
            columns[f"{each.row.method}_correct"] = map(_text, each.is_correct)
    return csv_text(list(columns), zip(*columns.values(), strict=True))


def _text(value: np.bool) -> str:
    return str(value).lower()


def _mean(is_correct: Bools) -> float:
    """Return the share of correct images; NaN for none."""
    return float(is_correct.mean()) if len(is_correct) else math.nan
