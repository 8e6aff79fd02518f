"""Judging: what each method has found, by the labels that were kept from it. Nothing here reaches a
method.

J images whose labels were kept, in all draws together.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import Bools
from shoal.clustering.matching import Accuracy, put_right
from shoal.discovery.comparison.comparison_result import Row
from shoal.discovery.comparison.comparison_settings import title_of
from shoal.discovery.comparison.label_draw import LabelDraw
from shoal.discovery.comparison.ranking import rank
from shoal.runs import COMPARED, Assignment, Run, damaged


@dataclass(frozen=True, eq=False, kw_only=True)
class Judged:
    """A method's finished runs, one per draw, and which of the kept images they put right."""

    method: str
    runs: tuple[Run, ...]
    right: Bools
    """(J,)"""
    failed: str = ""

    def row(
        self,
        accuracy: Accuracy | None = None,
        interval: tuple[float, float] | None = None,
        ranks: tuple[int, int] | None = None,
        ties: tuple[str, ...] = (),
    ) -> Row:
        """A row of the table."""
        about = [run.provenance for run in self.runs]
        return Row(
            method=self.method,
            title=title_of(self.method),
            accuracy=accuracy,
            interval=interval,
            ranks=ranks,
            ties=ties,
            n_clusters=tuple(int(one["asked"]) for one in about),
            seconds=sum(float(one["seconds"]) for one in about) / len(about),
            run=str(self.runs[0].path),
            failed=self.failed,
        )


def run_folder(path: Path, method: str, draw: int) -> Path:
    """The folder of the run of a method in a draw."""
    return path / COMPARED / (method if draw == 0 else f"{method}-{draw + 1}")


def judge(path: Path, method: str, draws: Sequence[LabelDraw]) -> Judged | None:
    """Read the runs of a method and judge them by the kept labels; None where one is not
    finished."""
    runs = tuple(Run(run_folder(path, method, draw)) for draw in range(len(draws)))
    if not all(run.is_finished for run in runs):
        return None
    failed = next((run.provenance["failed"] for run in runs if run.provenance.get("failed")), "")
    if failed:
        n_kept = sum(len(kept.rows) for kept in draws)
        return Judged(method=method, runs=runs, right=np.zeros(n_kept, dtype=bool), failed=failed)
    right = [kept_right(kept, _kept_rows(run, kept)) for run, kept in zip(runs, draws, strict=True)]
    return Judged(method=method, runs=runs, right=np.concatenate(right))


def kept_right(kept: LabelDraw, rows: Sequence[Assignment]) -> Bools:
    """(J,) which of the kept images a method has put right, by what its run says of them.

    An image of a known category is right in the category of that name. A category that was kept
    whole has no name there: it is matched with one novel category, so that the most images agree;
    those that were put into known ones are wrong.
    """
    labels = np.array([kept.classes[label] for label in kept.labels], dtype=object)
    names = np.array([row.category for row in rows], dtype=object)
    is_found_novel = np.array([row.is_novel for row in rows])
    right: Bools = np.array(names == labels, dtype=bool)
    both = kept.is_novel & is_found_novel
    right[both] = put_right(labels[both], names[both])
    return right


def _kept_rows(run: Run, kept: LabelDraw) -> list[Assignment]:
    """(J,) what a run says of the kept images of a draw."""
    rows = run.assignments
    if tuple(row.path for row in rows) != kept.given.names:
        raise damaged(run.path / "assignments.csv", "it names other images than the comparison")
    return [rows[row] for row in kept.rows]


def rank_methods(
    judged: Sequence[Judged], draws: Sequence[LabelDraw], seed: int
) -> tuple[tuple[Row, ...], tuple[dict[str, Any], ...]]:
    """The rows of the table, the best first and those that failed last, and each method against
    those below it."""
    good = [one for one in judged if not one.failed]
    names = [one.method for one in good]
    is_novel = np.concatenate([kept.is_novel for kept in draws])
    units = np.concatenate([kept.units for kept in draws])
    ranking = rank(np.stack([one.right for one in good]), units, is_novel, seed=seed)
    order = ranking.order
    rows = []
    pairs = []
    for place, at in enumerate(order):
        right = good[at].right
        share = float(ranking.shares[at])
        accuracy = Accuracy(share, _share(right[~is_novel]), _share(right[is_novel]))
        ties = tuple(names[other] for other in order if ranking.is_tie[at, other])
        interval = (float(ranking.low[at]), float(ranking.high[at]))
        rows.append(good[at].row(accuracy, interval, ranking.rank_range(at), ties))
        pairs += [
            {
                "methods": [names[at], names[other]],
                "difference": float(ranking.difference[at, other]),
                "interval": ranking.difference_interval[:, at, other].tolist(),
                "is_tie": bool(ranking.is_tie[at, other]),
            }
            for other in order[place + 1 :]
        ]
    rows += [one.row() for one in judged if one.failed]
    return tuple(rows), tuple(pairs)


def kept_table(judged: Sequence[Judged], draws: Sequence[LabelDraw]) -> str:
    """The kept labels as CSV: a row per image and draw, where each method has put it, and whether
    that is right."""
    good = [one for one in judged if not one.failed]
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    names = [name for one in good for name in (one.method, f"{one.method}_right")]
    write(["draw", "path", "label", "whole_category", *names])
    at = 0
    for draw, kept in enumerate(draws):
        found = [one.runs[draw].assignments for one in good]
        for row, label, is_novel in zip(kept.rows, kept.labels, kept.is_novel, strict=True):
            line = [draw + 1, kept.given.names[row], kept.classes[label], _word(is_novel)]
            for one, assignments in zip(good, found, strict=True):
                line += [assignments[row].category, _word(one.right[at])]
            write(line)
            at += 1
    return out.getvalue()


def _word(value: np.bool) -> str:
    return "true" if value else "false"


def _share(right: Bools) -> float:
    """The share that is right; NaN of none."""
    return float(right.mean()) if len(right) else math.nan
