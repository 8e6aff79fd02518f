"""Judging: what each method has found, by the labels that were kept from it. Nothing here reaches a method.

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
from shoal.discovery.comparison.comparison_result import Comparison, Row
from shoal.discovery.comparison.comparison_settings import title_of
from shoal.discovery.comparison.label_draw import LabelDraw
from shoal.discovery.comparison.ranking import Ranking, rank
from shoal.runs import COMPARED, Assignment, RunView, damaged


@dataclass(frozen=True, eq=False, kw_only=True)
class Judged:
    """A method's finished runs, one per draw, and which of the kept images they put right."""

    method: str
    runs: tuple[RunView, ...]
    right: Bools
    """(J,)"""
    failed: str = ""


def run_folder(path: Path, method: str, draw: int) -> Path:
    """The folder of the run of a method in a draw."""
    return path / COMPARED / (method if draw == 0 else f"{method}-{draw + 1}")


def judge(path: Path, method: str, draws: Sequence[LabelDraw]) -> Judged | None:
    """Read the runs of a method and judge them by the kept labels; None where one is not finished."""
    runs = tuple(RunView(run_folder(path, method, draw)) for draw in range(len(draws)))
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

    An image of a known category is right in the category of that name. A category that was kept whole has no name
    there: it is matched with one novel category, so that the most images agree; those that were put into known ones
    are wrong.
    """
    labels = np.array([kept.classes[label] for label in kept.labels], dtype=object)
    names = np.array([row.category for row in rows], dtype=object)
    is_found_novel = np.array([row.is_novel for row in rows])
    right: Bools = np.array(names == labels, dtype=bool)
    both = kept.is_novel & is_found_novel
    right[both] = put_right(labels[both], names[both])
    return right


def _kept_rows(run: RunView, kept: LabelDraw) -> list[Assignment]:
    """(J,) what a run says of the kept images of a draw."""
    rows = run.assignments
    if tuple(row.path for row in rows) != kept.given.names:
        raise damaged(run.path / "assignments.csv", "it names other images than the comparison")
    return [rows[row] for row in kept.rows]


def conclude(
    path: Path, judged: Sequence[Judged], draws: Sequence[LabelDraw], *, seed: int, **about: Any
) -> Comparison:
    """Rank what was judged; `about` are the other fields of `Comparison`."""
    good = [one for one in judged if not one.failed]
    units, is_novel = (
        np.concatenate([getattr(kept, name) for kept in draws]) for name in ("units", "is_novel")
    )
    ranking = rank(np.stack([one.right for one in good]), units, is_novel, seed=seed)
    rows = [_row(good, ranking, at, is_novel) for at in ranking.order]
    rows += [_failed_row(one) for one in judged if one.failed]
    return Comparison(path=path, rows=tuple(rows), pairs=tuple(_pairs(good, ranking)), **about)


def _row(judged: Sequence[Judged], ranking: Ranking, at: int, is_novel: Bools) -> Row:
    one = judged[at]
    known = _share(one.right[~is_novel])
    novel = _share(one.right[is_novel])
    return Row(
        method=one.method,
        title=title_of(one.method),
        accuracy=Accuracy(ranking.shares[at], known, novel),
        interval=ranking.intervals[at],
        ranks=ranking.ranks[at],
        ties=tuple(judged[other].method for other in ranking.order if other in ranking.ties(at)),
        **_about_runs(one),
    )


def _failed_row(one: Judged) -> Row:
    none: dict[str, Any] = {"accuracy": None, "interval": None, "ranks": None, "ties": ()}
    return Row(
        method=one.method, title=title_of(one.method), **none, **_about_runs(one), failed=one.failed
    )


def _about_runs(one: Judged) -> dict[str, Any]:
    seconds = [float(run.provenance["seconds"]) for run in one.runs]
    n_clusters = tuple(int(run.provenance["asked"]) for run in one.runs)
    return {
        "seconds": sum(seconds) / len(seconds),
        "n_clusters": n_clusters,
        "run": str(one.runs[0].path),
    }


def _pairs(judged: Sequence[Judged], ranking: Ranking) -> list[dict[str, Any]]:
    """Each method against those below it."""
    order = ranking.order
    return [
        {
            "methods": [judged[i].method, judged[j].method],
            "difference": ranking.pairs[i, j].difference,
            "interval": [ranking.pairs[i, j].low, ranking.pairs[i, j].high],
            "is_tie": not ranking.pairs[i, j].is_clear,
        }
        for at, i in enumerate(order)
        for j in order[at + 1 :]
    ]


def kept_table(judged: Sequence[Judged], draws: Sequence[LabelDraw]) -> str:
    """The kept labels as CSV: a row per image and draw, where each method has put it, and whether that is right."""
    good = [one for one in judged if not one.failed]
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    names = [name for one in good for name in (one.method, f"{one.method}_right")]
    write(["draw", "path", "label", "whole_category", *names])
    at = 0
    for draw, kept in enumerate(draws):
        columns = [[row.category for row in one.runs[draw].assignments] for one in good]
        for row, label, is_novel in zip(kept.rows, kept.labels, kept.is_novel, strict=True):
            cells = [
                cell
                for one, column in zip(good, columns, strict=True)
                for cell in (column[row], _word(one.right[at]))
            ]
            write([draw + 1, kept.given.names[row], kept.classes[label], _word(is_novel), *cells])
            at += 1
    return out.getvalue()


def _word(value: Any) -> str:
    return "true" if value else "false"


def _share(right: Bools) -> float:
    """The share that is right; NaN of none."""
    return float(right.mean()) if len(right) else math.nan
