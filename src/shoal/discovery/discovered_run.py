"""A finished run in Python: its tables, what people decide about it, its report, score and exports,
new images."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import torch

from shoal.data.readers import read_names
from shoal.data.readers.tables import is_frame
from shoal.discovery.answers import answer_in_words, write_report
from shoal.discovery.assign import Assigner
from shoal.discovery.export.formats import Exported, export_run
from shoal.discovery.predict_images import assign_any
from shoal.discovery.reporter import Reporter
from shoal.discovery.scoring import Score, score_run
from shoal.errors import UsageError, missing_package
from shoal.report.notebook import run_html
from shoal.review import verbs
from shoal.review.parts import labels_that_leave
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.review.verbs import Which
from shoal.runs import Assignment, Category, Run, column
from shoal.words import count, plural


class DiscoveredRun(Run):
    """A finished run: what was found and decided, its report, score and exports, and its way to
    take new images.

    `shoal.discover` and `shoal.load` return one; the examples of its methods go on from this one.

    Parameters
    ----------
    path
        The run folder.

    Examples
    --------
    >>> import shoal
    >>> run = shoal.load("runs/photos")
    >>> run.n_clusters, run.n_known, run.n_novel
    (5, 3, 2)
    """

    @property
    def assignments(self) -> Sequence[Assignment]:
        """A row per image, in the order of the embeddings, as people have decided by now."""
        return ReviewedRun(self.path).assignments

    @property
    def categories(self) -> list[Category]:
        """A row per category that has not ended, known ones first."""
        return ReviewedRun(self.path).categories

    def _repr_html_(self) -> str:
        """What a notebook shows of the run: counts, and a strip of pictures per category."""
        return run_html(self, answer_in_words(self))

    def report(
        self, file: str | os.PathLike[str] | None = None, *, tsne: bool | None = None
    ) -> Path:
        """Write the run as one HTML page.

        Parameters
        ----------
        file
            The page to write; report.html in the run folder if not given.
        tsne
            True draws a map by t-SNE and keeps it in the run folder; None shows one that was kept,
            False none.

        Returns
        -------
        Path
            The page.

        Examples
        --------
        >>> run.report("found.html").name
        'found.html'
        """
        return write_report(Run(self.path), None if file is None else Path(file), tsne=tsne)

    def assigner(self, *, device: str | torch.device | None = None) -> Assigner:
        """Load the model once, to put new images into the categories of this run again and again.

        Parameters
        ----------
        device
            As for `discover`.

        Returns
        -------
        Assigner
            Its methods take images; `predict` does it once.

        Examples
        --------
        >>> run.assigner().classes
        ['blue', 'green', 'red', 'novel-001', 'novel-002']
        """
        return Assigner(ReviewedRun.open(self.path), device=device)

    def predict(
        self, images: Any, *, allow_missing: bool = False, device: str | torch.device | None = None
    ) -> list[Assignment]:
        """Put new images into the categories of this run: a row each, category_id -1 for what is
        possibly new.

        A list, array or data frame has a row per entry, in your order, with the paths as you gave
        them; an image that is listed twice has two. An image that cannot be read keeps its row
        there, with `status` unreadable, category_id -1 and is_novel false; a path that is not
        there, or that is a folder, is an error. Of a folder, a table file or shards there is a row
        per image that can be read, by path. Notes to the logger `shoal` say what cannot be read.

        Parameters
        ----------
        images
            A folder, one image file, shards, a table or data frame of paths, a list of paths, a
            list of PIL images or arrays, or an array; for embeddings made as the run's were a file
            (npy, npz) or an (M, D) array of floats.
        allow_missing
            Go on where many rows of a table file name images that are not there, or shards are
            damaged.
        device
            As for `discover`.

        Returns
        -------
        list of Assignment
            A row per image, as in `assignments`.

        Examples
        --------
        >>> rows = run.predict("photos/")
        >>> len(rows), rows[0].category in [category.category for category in run.categories]
        (60, True)
        """
        assigner = Assigner(ReviewedRun.open(self.path), device=device, reporter=Reporter())
        rows, skipped = assign_any(assigner, images, allow_missing=allow_missing)
        for image in skipped:
            Reporter().say(f"note: {image.name}: {image.reason}")
        return rows

    def evaluate(self, truth: Any) -> Score:
        """Score the run against true classes; the score is written to accuracy.json, which the
        report shows.

        Parameters
        ----------
        truth
            A table, a data frame, an npy with a class per image, or a mapping of paths to classes.

        Returns
        -------
        Score
            The accuracy on the unlabeled images, and notes about what in the truth may be a
            mistake.

        Examples
        --------
        >>> unlabeled = [row for row in run.assignments if not row.label_given]
        >>> run.evaluate({row.path: row.category for row in unlabeled}).accuracy.all
        1.0
        """
        run = ReviewedRun.open(self.path)
        if isinstance(truth, Mapping):
            return score_run(run, {str(path): str(name) for path, name in truth.items()})
        if not isinstance(truth, str | os.PathLike) and not is_frame(truth):
            kind = type(truth).__name__
            raise UsageError(
                f"truth: found {kind}, expected a table, a data frame, an npy or a mapping of paths"
            )
        named = read_names(truth, list(column(run.assignments, "path")))
        score = score_run(run, named.classes)
        return replace(score, notes=named.notes + score.notes)

    def export(self, to: str, out: str | os.PathLike[str], **options: Any) -> Exported:
        """Write the run for another program.

        Parameters
        ----------
        to
            imagefolder, hf, csv, spreadsheet, labelstudio, fiftyone or projector.
        out
            The folder to write, empty or new.
        **options
            `images` where they have moved, `linking` ('link', 'copy') and `given_labels` ('keep',
            'predicted').

        Returns
        -------
        Exported
            The folder, what to do in the other program, and notes.

        Examples
        --------
        >>> exported = run.export("csv", "tables")
        >>> (exported.folder / "categories.csv").is_file()
        True
        """
        return export_run(ReviewedRun.open(self.path), to, Path(out), **options)

    @cached_property
    def review(self) -> Review:
        """What people decided about the run; `shoal review` and the verbs below write to the same
        log."""
        return Review(self)

    def confirm(
        self, category: Which | None = None, *, images: Iterable[str] | None = None
    ) -> None:
        """Say that images belong to the category they are in; give a category or images.

        Parameters
        ----------
        category
            The name or id of a category, whose undecided images are meant.
        images
            Images by path.

        Examples
        --------
        >>> run.confirm("novel-001")
        >>> {row.status for row in run.assignments if row.category == "novel-001"}
        {'confirmed'}
        """
        verbs.decide(self.review, "confirm", category, images)

    def reject(self, images: Iterable[str]) -> None:
        """Say that images do not belong to the category they are in; they have none then.

        Parameters
        ----------
        images
            Images by path.

        Examples
        --------
        >>> photo = next(row.path for row in run.assignments if row.category == "novel-002")
        >>> run.reject([photo])
        >>> next(row.category_id for row in run.assignments if row.path == photo)
        -1
        """
        verbs.decide(self.review, "reject", None, images)

    def flag(self, images: Iterable[str]) -> None:
        """Mark images that somebody has looked at and is unsure about.

        Parameters
        ----------
        images
            Images by path.

        Examples
        --------
        >>> doubtful = next(row.path for row in run.assignments if row.category == "novel-002")
        >>> run.flag([doubtful])
        >>> [row.path for row in run.assignments if row.status == "flagged"] == [doubtful]
        True
        """
        verbs.decide(self.review, "flag", None, images)

    def move(self, images: Iterable[str], to: Which) -> None:
        """Put images into another category, a new one where none has that name.

        Parameters
        ----------
        images
            Images by path.
        to
            The name or id of a category, or a new name.

        Examples
        --------
        >>> run.move([photo], "orange")
        >>> next(row.size for row in run.categories if row.category == "orange")
        1
        """
        verbs.move(self.review, images, to)

    def rename(self, category: Which, name: str) -> None:
        """Give a category another name.

        Parameters
        ----------
        category
            Its name or id.
        name
            The new name, which no other category has.

        Examples
        --------
        >>> run.rename("novel-001", "teal")
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'orange', 'red', 'teal']
        """
        verbs.rename(self.review, category, name)

    def merge(self, categories: Which | Sequence[Which], into: Which | None = None) -> None:
        """Merge categories into one of them; the others end.

        Parameters
        ----------
        categories
            One or more, by name or id; one alone goes into `into`.
        into
            The one that stays, by name or id; the first if not given.

        Examples
        --------
        >>> run.merge(["novel-002", "orange"])
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'red', 'teal']
        """
        verbs.merge(self.review, categories, into)

    def split(
        self, category: Which, parts: SupportsIndex | Mapping[str, Iterable[str]] = 2
    ) -> None:
        """Split a category. The part with most of its given labels keeps its name and id.

        A given label counts until somebody decides about that very image: labeled images that leave
        the category go back to it in the next discovery (`shoal.refine`), unless they are confirmed
        where they are. A warning counts them.

        Parameters
        ----------
        category
            Its name or id.
        parts
            How many parts, as the tree of the run parts it; or images by path, under the name that
            they get.

        Examples
        --------
        >>> run.split("novel-002")
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'novel-002 (2)', 'red', 'teal']
        """
        split = verbs.split(self.review, category, parts).action
        n = len(labels_that_leave(self.review.state, split))
        if n:
            name = self.review.state.records[split.category].name
            warnings.warn(
                f"{count(n, 'image')} labeled {name} {plural(n, 'is')} in another category now; a "
                "given label counts "
                "until you confirm or move the image itself",
                stacklevel=2,
            )

    def undo(self) -> None:
        """Undo the last thing done to the run by this account; what others built on is skipped,
        with a warning.

        Examples
        --------
        >>> run.undo()
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'red', 'teal']
        """
        self._again("undo")

    def redo(self) -> None:
        """Do again what was undone last; what others have changed since is skipped, with a warning.

        Examples
        --------
        >>> run.redo()
        >>> len(run.categories)
        6
        """
        self._again("redo")

    def _again(self, kind: str) -> None:
        for reason in self.review.again(kind)[1]:
            warnings.warn(f"skipped: {reason}", stacklevel=3)

    def to_pandas(self, what: Literal["assignments", "categories"] = "assignments") -> Any:
        """Make a table of the run a data frame.

        Parameters
        ----------
        what
            The table: assignments, a row per image, or categories.

        Returns
        -------
        pandas.DataFrame
            A column per field of the rows.

        Examples
        --------
        >>> run.to_pandas().shape[0], run.to_pandas("categories").shape[0]
        (60, 6)
        """
        try:
            import pandas
        except ImportError as error:
            raise missing_package("pandas", "to_pandas") from error
        if what not in ("assignments", "categories"):
            raise UsageError(f"to_pandas: found {what!r}, expected assignments or categories")
        rows: Sequence[Assignment | Category] = self.assignments
        names = [field.name for field in fields(Assignment)]
        if what == "categories":
            rows = self.categories
            names = [field.name for field in fields(Category)]
        return pandas.DataFrame(
            [[getattr(row, name) for name in names] for row in rows], columns=names
        )
