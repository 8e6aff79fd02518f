"""Evaluate the methods of a comparison on held-out labels, which no method sees.

Shapes: J images whose labels are held out, in all repeats together.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, compress
from pathlib import Path

import numpy as np

from shoal.arrays import Bools
from shoal.clustering.matching import Accuracy, correct_images
from shoal.discovery.comparison.comparison_result import Row
from shoal.discovery.comparison.comparison_settings import title_of
from shoal.discovery.comparison.label_split import LabelSplit
from shoal.discovery.comparison.ranking import rank
from shoal.files import write_text
from shoal.runs import COMPARED, Assignment, Run, csv_text, damaged
from shoal.settings import Plain
from shoal.words import span


def run_folder(path: Path, method: str, repeat: int) -> Path:
    return path / COMPARED / (method if repeat == 0 else f"{method}-{repeat + 1}")


def evaluate(
    path: Path, methods: Iterable[str], splits: Sequence[LabelSplit], seed: int
) -> tuple[list[Row], list[Plain]]:
    """Return a row for each method whose runs are finished, best first, and each pair of rows.

    Write held_out.csv: the held-out labels, the category that each method predicts, and whether it
    is correct.
    """
    is_novel = np.concatenate([split.is_novel for split in splits])
    columns: dict[str, Iterable[object]] = {
        "repeat": [number for number, split in enumerate(splits, start=1) for _ in split.rows],
        "path": [split.collection.names[row] for split in splits for row in split.rows],
        "label": [split.classes[label] for split in splits for label in split.labels],
        "is_novel": _texts(is_novel),
    }
    runs_of = {}
    correct = {}
    for method in methods:
        runs = [Run(run_folder(path, method, repeat)) for repeat in range(len(splits))]
        if not all(run.is_finished for run in runs):
            continue
        found = [held_out_rows(*both) for both in zip(runs, splits, strict=True)]
        is_correct = [find_correct(*both) for both in zip(splits, found, strict=True)]
        runs_of[method] = runs
        correct[method] = np.concatenate(is_correct)
        columns[method] = [row.category for rows in found for row in rows]
        columns[f"{method}_correct"] = _texts(correct[method])
    write_text(path / "held_out.csv", csv_text(list(columns), zip(*columns.values(), strict=True)))
    names = sorted(correct, key=lambda name: -correct[name].mean())
    units = np.concatenate([split.units for split in splits])
    ranking = rank(np.stack([correct[name] for name in names]), units, is_novel, seed=seed)
    rows = []
    for index, name in enumerate(names):
        records = [run.provenance for run in runs_of[name]]
        ranks = ranking.rank_range(index)
        row = Row(
            method=name,
            title=title_of(name),
            accuracy=Accuracy(
                ranking.accuracy[index].item(),
                _share(correct[name][~is_novel]),
                _share(correct[name][is_novel]),
            ),
            interval=[ranking.low[index].item(), ranking.high[index].item()],
            ranks=ranks,
            rank=span(ranks),
            ties=list(compress(names, ranking.is_tie[index])),
            n_clusters=[record["n_clusters"] for record in records],
            seconds=sum(record["seconds"] for record in records) / len(records),
            run=str(runs_of[name][0].path),
        )
        rows.append(row)
    pairs = [
        {
            "methods": [names[index], names[other]],
            "difference": ranking.difference[index, other].item(),
            "interval": ranking.difference_interval[:, index, other].tolist(),
            "is_tie": ranking.is_tie[index, other].item(),
        }
        for index, other in combinations(range(len(names)), 2)
    ]
    return rows, pairs


def held_out_rows(run: Run, split: LabelSplit) -> list[Assignment]:
    """Return the rows of the held-out images in the run of a method."""
    rows = run.assignments
    if tuple(row.path for row in rows) != split.collection.names:
        raise damaged(run.path / "assignments.csv", "its images are not those compared")
    return [rows[index] for index in split.rows]


def find_correct(split: LabelSplit, rows: Sequence[Assignment]) -> Bools:
    """Return (J,) which held-out images are correct, from their rows in a run.

    An image of a known category is correct in the category of that name. Categories held out whole
    have no name in the run: they are matched one to one with novel categories (Hungarian).
    """
    labels = np.array([split.classes[label] for label in split.labels], dtype=object)
    names = np.array([row.category for row in rows], dtype=object)
    is_found_novel = np.array([row.is_novel for row in rows])
    is_correct = np.array(names == labels, dtype=bool)
    both = split.is_novel & is_found_novel
    is_correct[both] = correct_images(labels[both], names[both])
    return is_correct


def _texts(values: Bools) -> list[str]:
    return [str(value).lower() for value in values.tolist()]


def _share(is_correct: Bools) -> float:
    """Return the share of correct images; NaN for none."""
    return is_correct.mean().item() if len(is_correct) else math.nan
