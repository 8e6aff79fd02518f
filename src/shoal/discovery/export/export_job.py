"""An export to be written: what of a run goes where, and whose word counts where a label and a category disagree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.discovery.export.file_names import Linking
from shoal.review.decisions import decisions_of
from shoal.review.reviewed_run import fitting_review, names_today
from shoal.runs import Assignment, Category, Run

GivenLabels = Literal["keep", "predicted"]
"""Where an image came with a label and was put into another category: 'keep' the label, or take what was predicted."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """What a format writes."""

    run: Run
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


def disagreeing(run: Run) -> list[Assignment]:
    """The images that came with a label and were put into another category, unless a person has decided."""
    decided = contradicted(run)
    return [
        row
        for row in run.assignments
        if row.label_given not in ("", row.category) and row.path not in decided
    ]


def contradicted(run: Run) -> frozenset[str]:
    """The images whose category counts instead of their label: people decided so, or split them off.

    To the next discovery a split is no word about a label; an export is what people left.
    """
    review = fitting_review(run)
    if review is None:
        return frozenset()
    decisions = decisions_of(review.state)
    by_run = {*decisions.called.values()}
    split_off = {
        path
        for path in decisions.given
        if path in decisions.categories and decisions.categories[path] not in by_run
    }
    return decisions.contradicted | split_off


def found_by_run(run: Run) -> dict[str, tuple[str, float]]:
    """Map each image to the category that the run itself has found, by the name of today, and how sure it was."""
    review = fitting_review(run)
    if review is None:
        return {}
    names = names_today(review.state)
    columns = review.state.columns
    rows = zip(review.state.paths, columns["category"], columns["confidence"], strict=True)
    return {path: (names.get(category, category), float(sure)) for path, category, sure in rows}


def choices(run: Run) -> list[Category]:
    """The categories that an image may be put into: not a novel one without images, unless a person gave its name."""
    review = fitting_review(run)
    named = (
        {number for number, one in review.state.records.items() if one.is_named}
        if review is not None
        else set()
    )
    return [
        one for one in run.categories if one.size or not one.is_novel or one.category_id in named
    ]


def settle(run: Run, given_labels: GivenLabels) -> tuple[Sequence[Assignment], list[Category]]:
    """The rows of a run's two tables, with every given label instead of the category, unless 'predicted'."""
    rows = run.assignments
    categories = run.categories
    if given_labels == "predicted":
        return rows, categories
    by_name = {category.category: category.category_id for category in categories}
    wrong = {row.path for row in disagreeing(run) if row.label_given in by_name}
    if not wrong:
        return rows, categories
    kept = [
        replace(row, category=row.label_given, category_id=by_name[row.label_given], is_novel=False)
        if row.path in wrong
        else row
        for row in rows
    ]
    sizes = Counter(row.category_id for row in kept)
    labeled = Counter(row.category_id for row in kept if row.label_given)
    settled = [
        replace(one, size=sizes[one.category_id], n_labeled=labeled[one.category_id])
        for one in categories
    ]
    return kept, settled
