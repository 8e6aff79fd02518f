"""An export to be written: what of a run goes where, and whose word counts.

That is the question where a given label and a category disagree.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.discovery.export.file_names import Linking
from shoal.review.decisions import decisions_of
from shoal.review.reviewed_run import ReviewedRun, names_today
from shoal.runs import Assignment, Category

GivenLabels = Literal["keep", "predicted"]
"""Where a labeled image was put into another category: keep the label, or take what was
predicted."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """What a format writes."""

    run: ReviewedRun
    rows: Sequence[Assignment]
    """The run's, with the labels that are kept."""
    categories: Sequence[Category]
    """The same; sizes are those of `rows`."""
    root: Path | None
    """The folder of the images, where there is one."""
    out: Path
    linking: Linking = "link"

    @property
    def images(self) -> Path:
        """The folder of the images, for a format that cannot do without."""
        assert self.root is not None
        return self.root


def disagreeing(run: ReviewedRun) -> list[Assignment]:
    """The labeled images that were put into another category, unless a person has decided."""
    decided = contradicted(run)
    return [
        row
        for row in run.assignments
        if row.label_given not in ("", row.category) and row.path not in decided
    ]


def contradicted(run: ReviewedRun) -> frozenset[str]:
    """The images whose category counts instead of their label: people decided so, or split them
    off.

    To the next discovery a split is no word about a label; an export is what people left.
    """
    if run.review is None:
        return frozenset()
    decisions = decisions_of(run.review.state)
    by_run = {*decisions.called.values()}
    split_off = {
        path
        for path in decisions.given
        if path in decisions.categories and decisions.categories[path] not in by_run
    }
    return decisions.contradicted | split_off


def found_by_run(run: ReviewedRun) -> dict[str, tuple[str, float]]:
    """By image, the category that the run itself has found, as called today, and how sure it
    was."""
    if run.review is None:
        return {}
    state = run.review.state
    names = names_today(state)
    rows = zip(state.paths, state.columns["category"], state.columns["confidence"], strict=True)
    return {path: (names.get(category, category), float(sure)) for path, category, sure in rows}


def choices(run: ReviewedRun) -> list[Category]:
    """The categories that an image may be put into.

    Not a novel one without images, unless a person gave its name.
    """
    named: set[int] = set()
    if run.review is not None:
        records = run.review.state.records
        named = {number for number, record in records.items() if record.is_named}
    return [
        one for one in run.categories if one.size or not one.is_novel or one.category_id in named
    ]


def settle(
    run: ReviewedRun, given_labels: GivenLabels
) -> tuple[Sequence[Assignment], list[Category]]:
    """The rows of a run's two tables, with given labels instead of categories, unless
    'predicted'."""
    categories = run.categories
    by_name = {category.category: category.category_id for category in categories}
    wrong = {row.path for row in disagreeing(run) if row.label_given in by_name}
    if given_labels == "predicted" or not wrong:
        return run.assignments, categories
    kept = []
    for row in run.assignments:
        if row.path in wrong:
            name = row.label_given
            row = replace(row, category=name, category_id=by_name[name], is_novel=False)
        kept.append(row)
    sizes = Counter(row.category_id for row in kept)
    labeled = Counter(row.category_id for row in kept if row.label_given)
    settled = [
        replace(one, size=sizes[one.category_id], n_labeled=labeled[one.category_id])
        for one in categories
    ]
    return kept, settled
