"""The content of an export: rows of a run, with labels and categories reconciled."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.discovery.export.file_names import link_image, original
from shoal.errors import UsageError
from shoal.review.decisions import decisions_of
from shoal.review.reviewed_run import ReviewedRun, current_names
from shoal.runs import NO_CATEGORY, Assignment, Category


@dataclass(frozen=True, eq=False, kw_only=True)
class ExportJob:
    """A run to be exported."""

    run: ReviewedRun
    rows: Sequence[Assignment]
    """The rows of the run, with the labels that are exported as their categories."""
    categories: Sequence[Category]
    """The categories of the run, with their sizes in `rows`."""
    root: Path | None
    """The folder of the images, if there is one."""
    out: Path
    copy: bool = False
    """Copy images instead of linking them."""

    @property
    def images(self) -> Path:
        """The folder of the images, for formats that need it."""
        if self.root is None:
            raise UsageError(
                "the images of the run are not local files, so they cannot be linked; give a "
                "folder of the images with --images, or export to csv, labelstudio or projector"
            )
        return self.root

    def link(self, files: Mapping[str, str]) -> None:
        """Link or copy images, given by path, to files of the export."""
        for path, file in files.items():
            link_image(original(self.images, path), self.out / file, copy=self.copy)


def find_disagreeing(run: ReviewedRun) -> list[Assignment]:
    """Return the images whose category differs from their label, except by a review decision."""
    overruled = find_overruled(run)
    return [
        row
        for row in run.assignments
        if row.label_given not in ("", row.category) and row.path not in overruled
    ]


def find_overruled(run: ReviewedRun) -> frozenset[str]:
    """Return the images whose label is overruled by a decision of the review.

    This includes images that a split separated from the category of their label, although they
    keep that label in the next discovery.
    """
    if run.review is None:
        return frozenset()
    decisions = decisions_of(run.review.state)
    by_run = {NO_CATEGORY, *decisions.called.values()}
    split_off = {
        path
        for path in decisions.given
        if decisions.categories.get(path, NO_CATEGORY) not in by_run
    }
    return decisions.contradicted | split_off


def predictions(run: ReviewedRun) -> dict[str, tuple[str, float]]:
    """Return the category, by its current name, and confidence that the run predicted for each
    image; empty without a review."""
    if run.review is None:
        return {}
    state = run.review.state
    names = current_names(state)
    rows = zip(state.paths, state.columns["category"], state.columns["confidence"], strict=True)
    return {
        path: (names.get(category, category), float(confidence))
        for path, category, confidence in rows
    }


def apply_labels(job: ExportJob, disagreeing: Sequence[Assignment]) -> ExportJob:
    """Return the job with the labels of disagreeing images in place of their categories."""
    ids = {category.category: category.category_id for category in job.categories}
    paths = {row.path for row in disagreeing}
    rows = list(job.rows)
    for index, row in enumerate(rows):
        if row.path in paths:
            label = row.label_given
            rows[index] = replace(row, category=label, category_id=ids[label], is_novel=False)
    sizes = Counter(row.category_id for row in rows)
    n_labeled = Counter(row.category_id for row in rows if row.label_given)
    categories = [
        replace(each, size=sizes[each.category_id], n_labeled=n_labeled[each.category_id])
        for each in job.categories
    ]
    return replace(job, rows=rows, categories=categories)
