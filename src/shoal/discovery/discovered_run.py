"""A finished run in Python: its tables, review, report and exports, new images, and its score.

Scores use the true classes. Nothing computed from them is used to choose anything.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
from matplotlib.figure import Figure

from shoal.arrays import Bools, Ints, digest_rows, nan_to_null
from shoal.clustering.matching import Accuracy, gcd_accuracy
from shoal.clustering.tree import CategoryTree
from shoal.data.readers import read_labels
from shoal.data.readers.boxes import BoxOptions
from shoal.data.readers.tables import is_frame
from shoal.device import AnyDevice
from shoal.discovery.assign import Assigner
from shoal.discovery.export.formats import Exported, export_run
from shoal.discovery.reporter import LOGGED
from shoal.discovery.results import write_report
from shoal.errors import DataError, UsageError, count, first_few, missing_package, plural
from shoal.files import AnyPath
from shoal.report.figures import map_pca, map_tsne
from shoal.report.map import cached_layouts, tsne_layouts
from shoal.report.rendering import categories_in_tree, category_tree, run_html
from shoal.report.summary import summarize_run
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.review.verbs import Which
from shoal.runs import Assignment, Category, Run, column, locked
from shoal.settings import Plain


@dataclass(frozen=True, kw_only=True)
class Score:
    """The accuracy of a run on its unlabeled images.

    Attributes
    ----------
    accuracy
        All, Known and Novel accuracy.
    n_images
        Unlabeled images with a true class.
    n_classes
        True classes among them.
    n_clusters
        Categories that the run has found.
    notes
        Possible mistakes in the truth.
    """

    accuracy: Accuracy
    n_images: int
    n_classes: int
    n_clusters: int
    notes: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Return All / Known / Novel accuracy and counts."""
        return (
            f"{self.accuracy} on {count(self.n_images, 'unlabeled image')} of "
            f"{count(self.n_classes, 'true class')}; {count(self.n_clusters, 'category')} found"
        )


def evaluate(
    run: Run, truth: Any, *, path_column: str | None = None, label_column: str | None = None
) -> Score:
    """Score a run against a table, a data frame, an npy or a mapping of true classes.

    The notes name rows of the truth that are not used.
    """
    if isinstance(truth, Mapping):
        return score_run(run, {str(path): str(name) for path, name in truth.items()})
    if not isinstance(truth, str | os.PathLike) and not is_frame(truth):
        kind = type(truth).__name__
        raise UsageError(
            f"truth: found {kind}, expected a table, a data frame, an npy or a mapping of paths"
        )
    names = list(column(run.assignments, "path"))
    classes, notes = read_labels(truth, names, path_column=path_column, label_column=label_column)
    score = score_run(run, classes)
    return replace(score, notes=(*notes, *score.notes))


def score_run(run: Run, truth: Mapping[str, str]) -> Score:
    """Score a run against true class names by image, and write the score to accuracy.json.

    Clusters are matched with classes once, over all unlabeled images. A class is known if the
    run was given labels of it. Images without a true class are left out; raise if none has
    one.
    """
    # Given labels have the names of the truth; a review may have renamed their categories.
    labels = list(column(Run(run.path).assignments, "label_given"))
    paths = list(column(run.assignments, "path"))
    categories = np.array(column(run.assignments, "category_id"), dtype=np.int64)
    scored = [i for i, path in enumerate(paths) if not labels[i] and path in truth]
    if not scored:
        raise DataError(
            f"truth: has a class for none of the {labels.count(''):,} unlabeled images of "
            f"{run.path}; give each path as in assignments.csv, with its class"
        )
    known = {label for label in labels if label}
    notes = []
    true_names = [truth[paths[i]] for i in scored]
    classes, y_true = np.unique(true_names, return_inverse=True)
    y_pred = categories[scored]
    if known and known.isdisjoint(true_names):
        notes.append(
            "no true class of the unlabeled images is a known category, so there is no Known "
            f"accuracy; are they spelled alike? true: {first_few(classes.tolist(), 5)}; known: "
            f"{first_few(sorted(known), 5)}"
        )
    score = Score(
        accuracy=_accuracy(y_true, y_pred, np.array([name in known for name in true_names])),
        n_images=len(scored),
        n_classes=len(classes),
        n_clusters=run.n_clusters,
        notes=tuple(notes),
    )
    # The checksum shows a report whether a review has changed the categories since.
    checksum = {"categories": digest_rows(categories)}
    with locked(run.path):
        Run(run.path).write_json("accuracy", score_to_dict(score) | checksum)
    return score


def _accuracy(y_true: Ints, y_pred: Ints, is_known: Bools) -> Accuracy:
    """Return `gcd_accuracy`, counting images without a category (rejected ones) as wrong."""
    has_category = y_pred >= 0
    accuracy = gcd_accuracy(y_true[has_category], y_pred[has_category], is_known[has_category])
    if has_category.all():
        return accuracy

    def with_rejected(share: float, group: Bools) -> float:
        """Return the share of correct images in the whole group."""
        if not group.any():
            return float("nan")
        return float(np.nan_to_num(share)) * int(group[has_category].sum()) / int(group.sum())

    return Accuracy(
        with_rejected(accuracy.all, np.ones_like(has_category)),
        with_rejected(accuracy.known, is_known),
        with_rejected(accuracy.novel, ~is_known),
    )


def score_to_dict(score: Score) -> Plain:
    """Return the score as plain numbers, with None for NaN."""
    plain = asdict(score)
    del plain["notes"]
    return nan_to_null(plain.pop("accuracy") | plain)


class DiscoveredRun(Run):
    """A finished run: its categories and their review, its report, score and exports.

    `shoal.discover` and `shoal.load` return one; the examples of its methods continue this one.

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
    def assignments(self) -> list[Assignment]:
        """A row per image, in the order of the embeddings, with the decisions of the review."""
        return ReviewedRun(self.path).assignments

    @property
    def categories(self) -> list[Category]:
        """A row per category, known ones first, with the decisions of the review."""
        return categories_in_tree(ReviewedRun(self.path))

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the summary, and pictures of each category."""
        return run_html(self, summarize_run(self))

    def report(self, file: AnyPath | None = None, *, tsne: bool = False) -> Path:
        """Write the run as one HTML page.

        Parameters
        ----------
        file
            The page to write; report.html in the run folder if not given.
        tsne
            Whether to compute a t-SNE map and store it in the run folder; a stored one is always
            shown.

        Returns
        -------
        Path
            The page.

        Examples
        --------
        >>> run.report("found.html").name
        'found.html'
        """
        run = Run(self.path)
        target = run.path / "report.html" if file is None else Path(file)
        if tsne:
            with locked(run.path):
                tsne_layouts(ReviewedRun.of(self))
        if target.parent != run.path:
            return write_report(run, target)  # the run may be on a read-only disk
        with locked(run.path):
            return write_report(run, target)

    @property
    def tree(self) -> CategoryTree:
        """The tree of the categories that have images, with the decisions of the review."""
        return category_tree(ReviewedRun(self.path))

    def plot(self, *, tsne: bool = False) -> Figure:
        """Draw the map of the images, before and after training or the mean shift.

        Parameters
        ----------
        tsne
            Whether to compute a t-SNE map and store it in the run folder; without a stored one, the
            principal components are drawn.

        Returns
        -------
        Figure
            A matplotlib figure.

        Examples
        --------
        >>> run.plot().savefig("map.png")
        """
        reviewed = ReviewedRun.of(self)
        if tsne:
            tsne_layouts(reviewed)
        if cached_layouts(reviewed):
            return map_tsne(self)
        return map_pca(self)

    def assigner(self, *, device: AnyDevice = None) -> Assigner:
        """Load the networks once, to assign new images several times.

        Parameters
        ----------
        device
            As for `discover`.

        Returns
        -------
        Assigner
            Assigns images; `predict` does it once.

        Examples
        --------
        >>> run.assigner().classes
        ['blue', 'green', 'red', 'novel-001', 'novel-002']
        """
        return Assigner(ReviewedRun.open(self.path), device=device)

    def predict(
        self,
        images: Any,
        *,
        allow_missing: bool = False,
        boxes: Any = None,
        min_confidence: float | None = None,
        margin: float = 0.0,
        whole_images: bool = False,
        device: AnyDevice = None,
    ) -> list[Assignment]:
        """Assign new images to the categories of this run, or to -1 if their category may be new.

        A list, array or data frame gives a row per entry, in its order and with its paths. An
        unreadable image has `status` unreadable, category_id -1 and is_novel false; a path that
        does not exist or is a folder raises an error. A folder, a table file or shards give a row
        per readable image. The logger `shoal` names unreadable images.

        Parameters
        ----------
        images
            A folder, one image file, shards, a table or data frame of paths, a list of paths, PIL
            images or arrays, or an array; or embeddings by the same encoder, as a file (npy, npz)
            or an (M, D) array of floats.
        allow_missing
            Continue if many images of a table file are missing, or shards are damaged.
        boxes
            Boxes in the images of a folder or table file, as for `discover`.
        min_confidence
            As for `discover`.
        margin
            As for `discover`.
        whole_images
            As for `discover`.
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
        assigner = Assigner(ReviewedRun.open(self.path), device=device, reporter=LOGGED)
        options = BoxOptions(
            source=boxes, min_confidence=min_confidence, margin=margin, whole_images=whole_images
        )
        rows, skipped = assigner.assign(images, allow_missing=allow_missing, boxes=options)
        for name, reason in skipped.items():
            LOGGED.report(f"note: {name}: {reason}")
        return rows

    def evaluate(self, truth: Any) -> Score:
        """Score the run against true classes, and write accuracy.json, which the report shows.

        Parameters
        ----------
        truth
            A table, a data frame, an npy with a class per image, or a mapping of paths to classes.

        Returns
        -------
        Score
            The accuracy on the unlabeled images, and notes about possible mistakes in the truth.

        Examples
        --------
        >>> unlabeled = [row for row in run.assignments if not row.label_given]
        >>> run.evaluate({row.path: row.category for row in unlabeled}).accuracy.all
        1.0
        """
        return evaluate(ReviewedRun.open(self.path), truth)

    def export(
        self,
        to: str,
        out: AnyPath,
        *,
        images: AnyPath | None = None,
        copy: bool = False,
    ) -> Exported:
        """Write the run for another program.

        Parameters
        ----------
        to
            imagefolder, hf, csv, spreadsheet, labelstudio, fiftyone, coco, yolo, projector, newick
            or dendrogram.
        out
            The folder to write, empty or new.
        images
            The folder of the images, if they have moved.
        copy
            Copy images instead of linking them.

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
        return export_run(
            ReviewedRun.open(self.path),
            to,
            Path(out),
            images=images,
            copy=copy,
        )

    @cached_property
    def review(self) -> Review:
        """The review of the run; `shoal review` and the methods below write to the same log."""
        return Review(self)

    def confirm(
        self, category: Which | None = None, *, images: Iterable[str] | None = None
    ) -> None:
        """Confirm that images belong to their category; give a category or images.

        Parameters
        ----------
        category
            The name or id of a category, whose undecided images are confirmed.
        images
            Images by path.

        Examples
        --------
        >>> run.confirm("novel-001")
        >>> {row.status for row in run.assignments if row.category == "novel-001"}
        {'confirmed'}
        """
        self.review.act(verbs.decide, "confirm", category, images)

    def reject(self, images: Iterable[str]) -> None:
        """Remove images from their category; they have none then.

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
        self.review.act(verbs.decide, "reject", None, images)

    def flag(self, images: Iterable[str]) -> None:
        """Mark images that somebody has looked at and is uncertain about.

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
        self.review.act(verbs.decide, "flag", None, images)

    def move(self, images: Iterable[str], to: Which) -> None:
        """Move images to another category, a new one if none has that name.

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
        self.review.act(verbs.move, images, to)

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
        self.review.act(verbs.rename, category, name)

    def merge(self, categories: Which | Sequence[Which], into: Which | None = None) -> None:
        """Merge categories into one of them.

        Parameters
        ----------
        categories
            Names or ids; a single one needs `into`.
        into
            The name or id of the category that remains; the first one if not given.

        Examples
        --------
        >>> run.merge(["novel-002", "orange"])
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'red', 'teal']
        """
        self.review.act(verbs.merge, categories, into)

    def split(
        self, category: Which, parts: SupportsIndex | Mapping[str, Iterable[str]] = 2
    ) -> None:
        """Split a category.

        Of a number of parts, the one with most of the given labels keeps the name and id; images
        that are not listed keep both if the parts are given.

        A given label holds until somebody decides about that image: labeled images that leave the
        category return to it in the next discovery (`shoal.refine`), unless they are confirmed. A
        warning counts them.

        Parameters
        ----------
        category
            Its name or id.
        parts
            The number of parts, by the tree of the run; or names of parts with images by path.

        Examples
        --------
        >>> run.split("novel-002")
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'novel-002 (2)', 'red', 'teal']
        """
        split = self.review.act(verbs.split, category, parts)
        labels = self.review.state.given_labels()[split.rows]
        n = int((labels == split.category).sum())
        if n:
            name = self.review.state.records[split.category].name
            warnings.warn(
                f"{count(n, 'image')} labeled {name} {plural(n, 'is')} in another category now; a "
                "given label counts until you confirm or move the image itself",
                stacklevel=2,
            )

    def undo(self) -> None:
        """Undo the last action of this account.

        Refused while an action of somebody else depends on it.

        Examples
        --------
        >>> run.undo()
        >>> sorted(row.category for row in run.categories)
        ['blue', 'green', 'novel-002', 'red', 'teal']
        """
        self.review.undo()

    def redo(self) -> None:
        """Redo the action that this account undid last.

        Refused if somebody has changed its images or categories since.

        Examples
        --------
        >>> run.redo()
        >>> len(run.categories)
        6
        """
        self.review.redo()

    def to_pandas(self, what: Literal["assignments", "categories"] = "assignments") -> Any:
        """Return a table of the run as a data frame.

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
        if what == "categories":
            rows = self.categories
        return pandas.DataFrame(list(rows))
