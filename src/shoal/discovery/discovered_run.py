"""A finished run in Python: its tables, what people decide about it, its report, score and exports, new images."""

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
from shoal.discovery.answer_words import answer_in_words
from shoal.discovery.answers import write_report
from shoal.discovery.assign import Assigner
from shoal.discovery.export.formats import Exported, export_run
from shoal.discovery.listed import assign_any
from shoal.discovery.reporter import Reporter
from shoal.discovery.scoring import Score, score_run
from shoal.errors import MissingError, UsageError
from shoal.report.notebook import run_html
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed import Reviewed, ReviewedRun
from shoal.review.verbs import Which
from shoal.runs import Assignment, Category, Run, column


class DiscoveredRun(Reviewed):
    """A finished run: what was found and decided, its report, score and exports, and its way to take new images."""

    def _repr_html_(self) -> str:
        """What a notebook shows of the run: counts, and a strip of pictures per category."""
        return run_html(self, answer_in_words(self))

    def report(self, file: str | os.PathLike[str] | None = None, *, tsne: bool | None = None) -> Path:
        """Write the run as one HTML page, report.html in the run folder if no file is given; returns its path."""
        return write_report(Run(self.path), None if file is None else Path(file), tsne=tsne)

    def assigner(self, *, device: str | torch.device | None = None) -> Assigner:
        """Load the model once, to put new images into the categories of this run again and again."""
        return Assigner(ReviewedRun.open(self.path), device=device)

    def predict(
        self, images: Any, *, allow_missing: bool = False, device: str | torch.device | None = None
    ) -> list[Assignment]:
        """Put new images into the categories of this run: a row each, category_id -1 for what is possibly new.

        A list, array or data frame has a row per entry, in your order, with the paths as you gave them; an image that
        is listed twice has two. An image that cannot be read keeps its row there, with `status` unreadable, category_id
        -1 and is_novel false; a path that is not there, or that is a folder, is an error. Of a folder, a table file or
        shards there is a row per image that can be read, by path. Notes to the logger `shoal` say what cannot be read.

        Parameters
        ----------
        images
            A folder, one image file, shards, a table or data frame of paths, a list of paths, a list of PIL images or
            arrays, or an array; for embeddings made as the run's were a file (npy, npz) or an (M, D) array of floats.
        allow_missing
            Go on where many rows of a table file name images that are not there, or shards are damaged.
        device
            As for `discover`.
        """
        assigner = Assigner(ReviewedRun.open(self.path), device=device, reporter=Reporter())
        rows, skipped = assign_any(assigner, images, allow_missing=allow_missing)
        for image in skipped:
            Reporter().say(f"note: {image.name}: {image.reason}")
        return rows

    def evaluate(self, truth: Any) -> Score:
        """Score the run against true classes: a table, a data frame, an npy, or a mapping of paths to classes.

        The score is written to accuracy.json, which the report shows.
        """
        run = ReviewedRun.open(self.path)
        if isinstance(truth, Mapping):
            return score_run(run, {str(path): str(name) for path, name in truth.items()})
        if not isinstance(truth, str | os.PathLike) and not is_frame(truth):
            kind = type(truth).__name__
            raise UsageError(f"truth: found {kind}, expected a table, a data frame, an npy or a mapping of paths")
        found = read_names(truth, list(column(run.assignments, "path")))
        score = score_run(run, found.classes)
        return replace(score, notes=found.notes + score.notes)

    def export(self, to: str, out: str | os.PathLike[str], **options: Any) -> Exported:
        """Write the run for another program into the empty or new folder `out`; `to` and `options` as `export_run`."""
        return export_run(ReviewedRun.open(self.path), to, Path(out), **options)

    @cached_property
    def review(self) -> Review:
        """What people decided about the run; `shoal review` and the verbs below write to the same log."""
        return Review(self)

    def confirm(self, category: Which | None = None, *, images: Iterable[str] | None = None) -> None:
        """Say that images belong to the category they are in: the undecided ones of a category, or some by path."""
        verbs.decide(self.review, "confirm", category, images)

    def reject(self, images: Iterable[str]) -> None:
        """Say that images do not belong to the category they are in; they have none then."""
        verbs.decide(self.review, "reject", None, images)

    def flag(self, images: Iterable[str]) -> None:
        """Mark images that somebody has looked at and is unsure about."""
        verbs.decide(self.review, "flag", None, images)

    def move(self, images: Iterable[str], to: Which) -> None:
        """Put images into another category, a new one where none has that name."""
        verbs.move(self.review, images, to)

    def rename(self, category: Which, name: str) -> None:
        """Give a category another name."""
        verbs.rename(self.review, category, name)

    def merge(self, categories: Sequence[Which], into: Which | None = None) -> None:
        """Merge categories into one of them, the first if not said; the others end."""
        verbs.merge(self.review, categories, into)

    def split(self, category: Which, parts: SupportsIndex | Mapping[str, Iterable[str]] = 2) -> None:
        """Split a category into so many parts, as the tree of the run parts it, or off it images by name."""
        verbs.split(self.review, category, parts)

    def undo(self) -> None:
        """Undo the last thing done to the run by this account; what others built on is skipped, with a warning."""
        self._again("undo")

    def redo(self) -> None:
        """Do again what was undone last; what others have changed since is skipped, with a warning."""
        self._again("redo")

    def _again(self, kind: str) -> None:
        for reason in self.review.again(kind)[1]:
            warnings.warn(f"skipped: {reason}", stacklevel=3)

    def to_pandas(self, what: Literal["assignments", "categories"] = "assignments") -> Any:
        """The table of images, or of categories, as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingError("to_pandas needs the package 'pandas', pip install pandas") from error
        if what not in ("assignments", "categories"):
            raise UsageError(f"to_pandas: found {what!r}, expected assignments or categories")
        kind, rows = (Assignment, self.assignments) if what == "assignments" else (Category, self.categories)
        names = [field.name for field in fields(kind)]
        return pandas.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
