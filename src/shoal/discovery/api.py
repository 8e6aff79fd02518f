"""The Python interface: `shoal.discover`, `shoal.load`, `shoal.refine` and the run that they return."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from shoal.data.collection import Collection
from shoal.data.readers import read_collection, read_names
from shoal.data.readers.folders import TABLE_SUFFIXES
from shoal.data.readers.shard_patterns import SHARD_SUFFIXES
from shoal.data.readers.tables import is_frame
from shoal.data.storage.addresses import as_address
from shoal.discovery.answer_words import answer
from shoal.discovery.answers import write_report
from shoal.discovery.assign import Assigner
from shoal.discovery.export.formats import Exported, export_run
from shoal.discovery.images import discover_images
from shoal.discovery.listed import assign_any
from shoal.discovery.refinement import Refinement
from shoal.discovery.reporter import Reporter, stderr_reporter
from shoal.discovery.scoring import Score, score_run
from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.distributed import is_main
from shoal.errors import MissingError, UsageError
from shoal.report.notebook import run_html
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.reviewed import Reviewed, ReviewedRun
from shoal.review.verbs import Which
from shoal.runs import Assignment, Category, Run


class DiscoveredRun(Reviewed):
    """A finished run: what was found and decided, its report, score and exports, and its way to take new images."""

    def _repr_html_(self) -> str:
        """What a notebook shows of the run: counts, and a strip of pictures per category."""
        return run_html(self, answer(self))

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
        found = read_names(truth, [row.path for row in run.assignments])
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

    def split(self, category: Which, parts: int | Mapping[str, Iterable[str]] = 2) -> None:
        """Split a category into so many parts, as the tree of the run parts it, or off it images by name."""
        verbs.split(self.review, category, parts)

    def undo(self) -> None:
        """Undo the last thing done to the run by this account."""
        self.review.undo()

    def redo(self) -> None:
        """Do again what was undone last."""
        self.review.redo()

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


def load(path: str | os.PathLike[str]) -> DiscoveredRun:
    """Open a finished run: its tables and arrays, its report, and its way to take new images.

    Parameters
    ----------
    path
        The run folder.

    Returns
    -------
    DiscoveredRun
        The run, with what people have decided about it since.

    Examples
    --------
    >>> import shoal
    >>> run = shoal.load("runs/photos")
    >>> run.to_pandas("categories").columns[:4].tolist()
    ['category_id', 'category', 'is_novel', 'size']
    """
    return DiscoveredRun.open(Path(path))


def discover(
    images: Any = None,
    labels: Any = None,
    *,
    labeled: str | os.PathLike[str] | None = None,
    unlabeled: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    review: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    verbose: bool = True,
    reporter: Reporter | None = None,
    tensorboard: bool = False,
    **settings: Any,
) -> DiscoveredRun:
    """Discover the categories in a partly labeled collection of images.

    Parameters
    ----------
    images
        A folder, a table or data frame of paths and labels, a list of paths, PIL images or arrays, or an array.
    labels
        A table, data frame or mapping of paths to labels, or one label per image; -1, None or NaN: unlabeled.
    labeled
        With `unlabeled`, instead of `images`: a folder with a folder per category.
    unlabeled
        A folder of images without labels.
    path_column
        The column of the table that holds the paths, where it has an uncommon name.
    label_column
        The column of the table that holds the labels, likewise.
    allow_missing
        Go on where more than a few per cent of a table's rows name images that are not there, or shards are damaged.
    review
        A reviewed run of these images, to go on from: as `refine`.
    out
        The run folder to write; runs/<name of the images> if not given.
    device
        'cpu', 'cuda' or 'cuda:1'; the best one there is if not given.
    resume
        Go on with an interrupted run; a finished one is returned as it is.
    force
        Overwrite a run that is there.
    verbose
        Show on stderr what was found and what happens, with progress; else it goes to the logger `shoal`, at
        level INFO, notes at level WARNING.
    reporter
        Says it elsewhere instead.
    tensorboard
        Write each epoch's metrics for TensorBoard into the run folder.
    **settings
        `n_clusters` (one number, or a range to estimate it in, (30, 50)), `method`, `encoder`, `epochs`,
        `train`, `seed`, `recipe`, `config`, `protocol` and the other arguments of
        `shoal.discovery.settings.choose_settings`.

    Examples
    --------
    >>> import shoal
    >>> run = shoal.discover("photos/", labels="labels.csv", n_clusters=5, train=False, verbose=False)
    >>> run.n_clusters, len(run.assignments)
    (5, 60)
    >>> run.report("report.html").name
    'report.html'
    """
    if reporter is None:
        reporter = stderr_reporter() if verbose and is_main() else Reporter()
    table: dict[str, Any] = {"path_column": path_column, "label_column": label_column, "allow_missing": allow_missing}
    given = {"source": images, "labels": labels, "labeled": labeled, "unlabeled": unlabeled, **table}
    job = prepare(given, settings, review=review, out=out, resume=resume, reporter=reporter)
    how: dict[str, Any] = {"device": device, "resume": resume, "force": force, "tensorboard": tensorboard}
    run = discover_and_report(*job, reporter=reporter, **how)
    if is_main():
        reporter.say(f"{answer(run)}; written to {run.path}")
    return run


def refine(
    run: str | os.PathLike[str] | Reviewed,
    images: Any = None,
    labels: Any = None,
    **options: Any,
) -> DiscoveredRun:
    """Discover again with what people decided about a run, into a new run: runs/photos-2 after runs/photos.

    Confirmed and moved images are labels, categories that a person has named or confirmed images of are known, and
    rejected images stay out of the categories they were thrown out of. There are as many categories as people left,
    unless `n_clusters` asks for another number; without training it goes on from these. Names and ids stay wherever a
    category has mostly the same images; changes.json in the new run says what changed, and its review is the old one,
    done again.

    Parameters
    ----------
    run
        A reviewed run, or its folder.
    images
        The same images, as `discover` takes them; where they were if not given.
    labels
        As for `discover`; those that the run was given if neither these nor the images say any.
    **options
        The other arguments of `discover`; settings that are not given are those of the run.

    Examples
    --------
    >>> import shoal
    >>> run = shoal.load("runs/photos")
    >>> run.rename("novel-001", "teal")
    >>> run.confirm("teal")
    >>> better = shoal.refine(run, verbose=False)
    >>> better.path.name, "teal" in [category.category for category in better.categories]
    ('photos-2', True)
    """
    return discover(images, labels, review=run.path if isinstance(run, Reviewed) else run, **options)


Job = tuple[Collection, Path, DiscoverySettings, Refinement | None]


def prepare(
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    review: str | os.PathLike[str] | None,
    out: str | os.PathLike[str] | None,
    resume: bool,
    reporter: Reporter,
) -> Job:
    """What `discover_and_report` takes: the images, where to write, the settings, and the review to go on from.

    `given` are the arguments of `read_collection`, `settings` those of `choose_settings`.
    """
    folder = None if out is None else Path(out)
    if review is None:
        named = given["source"] if given["source"] is not None else given["unlabeled"]
        chosen = choose_settings(**settings)
        return read_collection(**given), folder or default_folder(named), chosen, None
    refinement = Refinement.open(Path(review))
    folder = folder or refinement.next_folder
    refinement.check_out(folder, resume=resume)
    config = {} if settings.get("config") or settings.get("recipe") else {"config": refinement.config}
    chosen = choose_settings(**{**settings, **config})
    is_given = any(given.get(name) is not None for name in ("source", "labels", "labeled", "unlabeled"))
    images = read_collection(**given) if is_given else refinement.images(allow_missing=given["allow_missing"])
    collection = refinement.collection(images, allow_missing=given["allow_missing"])
    told = reporter if is_main() else Reporter()
    is_asked = any(settings.get(name) is not None for name in ("n_clusters", "config", "recipe"))
    is_asked = is_asked or "n_clusters" in (settings.get("changes") or {})
    return collection, folder, refinement.settings(chosen, collection, told, is_asked=is_asked), refinement


def discover_and_report(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings,
    refinement: Refinement | None = None,
    *,
    reporter: Reporter | None = None,
    **how: Any,
) -> DiscoveredRun:
    """Discover the categories of a collection, and write the report beside what was found.

    After a review what changed is written too, and the review anew.

    `how` are the other arguments of `discover_images`.
    """
    told = reporter or Reporter()

    def report(run: Run) -> None:
        if refinement is not None:
            refinement.conclude(run, told)
        with told.progress("writing the report"):
            write_report(run)

    run = discover_images(collection, out, settings, reporter=told, then=report, **how)
    return DiscoveredRun(run.path)


def default_folder(images: Any) -> Path:
    """Where a run goes when nobody says: runs/<name of the folder or file>, runs/images for images in memory."""
    if not isinstance(images, str | os.PathLike):
        return Path("runs") / "images"
    address = as_address(images)
    path = Path(images).resolve() if address is None else address
    is_folder = path.is_dir() if isinstance(path, Path) else path.suffix not in (*SHARD_SUFFIXES, *TABLE_SUFFIXES)
    name = re.sub(r"[-_.]?(\{[^}]*\}|\*)", "", path.name if is_folder else path.stem)  # of several shards
    return Path("runs") / (name or "images")
