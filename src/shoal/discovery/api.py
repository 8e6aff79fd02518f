"""The Python interface: `shoal.discover`, `shoal.load` and `shoal.refine`, their job, and the demo.

The job: a collection with some labels in, a finished run folder out. The frozen encoder yields the
frozen result. Training follows if held-out labels can show that it helps; the better result becomes
the run.
"""

import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import shoal.data
from shoal.device import AnyDevice, choose_device
from shoal.discovery.discovered_run import DiscoveredRun, Score, score_run
from shoal.discovery.discovery_settings import (
    CPU_RECIPE,
    GPU_RECIPE,
    DiscoverArguments,
    DiscoverySettings,
    SettingArguments,
    choose_settings,
    with_device_recipe,
)
from shoal.discovery.job import EmbeddedImages, ImageSource, Job
from shoal.discovery.reporter import LOGGED, SILENT, Reporter, default_reporter
from shoal.discovery.results import make_frozen_result, write_report, write_results
from shoal.discovery.reviewed.refinement import Refinement
from shoal.discovery.run_job import run_job
from shoal.discovery.trained.trained_result import train_and_choose
from shoal.distributed import is_main
from shoal.errors import UsageError
from shoal.files import AnyPath
from shoal.report.summary import summarize_run
from shoal.runs import Run
from shoal.settings import Plain

# 498 photographs of 16 categories of Caltech-101; their license is beside the folder
PHOTOS = Path(shoal.data.__path__[0]) / "demo_photos"


@dataclass(frozen=True, kw_only=True)
class DiscoveryJob(Job):
    """A discovery, for `preview` or `run_job`."""

    # The review of an earlier run that this one continues
    refinement: Refinement | None = None

    def plan(self) -> Plain:
        return {
            "n_images": len(self.collection),
            "n_labeled": self.collection.n_labeled,
            "n_unlabeled": len(self.collection) - self.collection.n_labeled,
            "n_unreadable": len(self.collection.left_out),
            "classes": list(self.collection.classes),
            "class_sizes": self.collection.class_sizes.tolist(),
            "method": self.settings.method,
            "trains": self.settings.is_trained,
        }

    def compute(self, images: EmbeddedImages) -> Plain:
        result = make_frozen_result(self, images)
        other = None
        if self.settings.is_trained:
            result, other = train_and_choose(self, images, result)
        write_results(self, result, other)
        return {"result": result.name}

    def write_final_outputs(self) -> None:
        if self.refinement is not None:
            self.refinement.write_final_outputs(self.run, self.reporter)
        with self.reporter.progress("writing the report"):
            write_report(self.run)


def load(path: AnyPath) -> DiscoveredRun:
    """Open a finished run.

    Parameters
    ----------
    path
        The run folder.

    Returns
    -------
    DiscoveredRun
        The run, with the decisions of its review.

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
    labeled: AnyPath | None = None,
    unlabeled: AnyPath | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    boxes: Any = None,
    min_confidence: float | None = None,
    margin: float = 0.0,
    whole_images: bool = False,
    review: AnyPath | None = None,
    out: AnyPath | None = None,
    device: AnyDevice = None,
    resume: bool = False,
    force: bool = False,
    verbose: bool = True,
    reporter: Reporter | None = None,
    **settings: Unpack[SettingArguments],
) -> DiscoveredRun:
    """Discover the categories in a partly labeled collection of images.

    Parameters
    ----------
    images
        A folder, a table or data frame of paths and labels, a list of paths, PIL images or arrays,
        or an array.
    labels
        A table, data frame or mapping of paths to labels, or one label per image; -1, None or NaN:
        unlabeled.
    labeled
        With `unlabeled`, instead of `images`: a folder with a folder per category.
    unlabeled
        A folder of images without labels.
    path_column
        The column of the table with the paths, if its name is not recognized.
    label_column
        The column of the table with the labels, if its name is not recognized.
    allow_missing
        Continue if more than a few percent of a table's images are missing, or shards are
        damaged.
    boxes
        Boxes to categorize instead of whole images: a JSON file of MegaDetector or COCO, a table
        or data frame (path, x, y, width, height and, optionally, label), or a folder of YOLO's text
        files.
    min_confidence
        Leave out boxes with a lower confidence; MegaDetector's typical threshold if not given.
    margin
        Widen boxes on each side by this share of their width and height.
    whole_images
        Whether images without a box are categorized too.
    review
        A reviewed run of these images to continue from, as in `refine`.
    out
        The run folder to write; `runs/<name of the folder or file>` by default.
    device
        'cpu', 'cuda' or 'cuda:1'; the best available one if not given.
    resume
        Resume an interrupted or stopped run. With or without it, a complete run of the same
        images, labels and settings is returned unchanged.
    force
        Overwrite an existing run.
    verbose
        Print messages and progress to stderr. If False, they go to the logger `shoal` at level
        INFO, or WARNING for notes.
    reporter
        Receives messages and progress instead.
    **settings
        `n_clusters` (a number, or a range such as (30, 50)), `method`, `encoder`,
        `epochs`, `train`, `seed`, `recipe`, `config`, `protocol`, `input_size`, `changes`
        ({"training.lr": 0.1}, as `--set`) and the other flags of `shoal discover`.

    Returns
    -------
    DiscoveredRun
        The finished run.

    Examples
    --------
    >>> import shoal
    >>> run = shoal.discover("photos/", "labels.csv", n_clusters=5, train=False, verbose=False)
    >>> run.n_clusters, len(run.assignments)
    (5, 60)
    >>> run.report("report.html").name
    'report.html'
    """
    began_at = time.monotonic()
    reporter = reporter or default_reporter(verbose=verbose)
    source = ImageSource(
        images=images,
        labels=labels,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        boxes=boxes,
        min_confidence=min_confidence,
        margin=margin,
        whole_images=whole_images,
    )
    job = prepare(
        source,
        review=review,
        out=out,
        device=device,
        resume=resume,
        force=force,
        reporter=reporter,
        began_at=began_at,
        **settings,
    )
    run_job(job)
    run = DiscoveredRun(job.run.path)
    if is_main():
        reporter.report(f"{summarize_run(run)} Written to {run.path}.")
    return run


def refine(
    run: AnyPath | Run,
    images: Any = None,
    labels: Any = None,
    **options: Unpack[DiscoverArguments],
) -> DiscoveredRun:
    """Discover again with the decisions of a review, in a new run: runs/photos-2 after runs/photos.

    Confirmed and moved images become labels; a given label holds unless that image was moved,
    rejected or confirmed. Named categories and those with confirmed images become known, and
    rejected images do not return to the category they were rejected from. The number of categories
    is that of the review unless `n_clusters` sets another; without training the new run continues
    from the reviewed categories. A category with mostly the same images keeps its name and id.
    changes.json in the new run lists the changes, and the review is replayed on it.

    Parameters
    ----------
    run
        A reviewed run, or its folder.
    images
        The same images, as in `discover`; read from their original location if not given.
    labels
        As in `discover`; those of the reviewed run if not given.
    **options
        The other arguments of `discover`; settings that are not given are those of the reviewed
        run.

    Returns
    -------
    DiscoveredRun
        The new run.

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
    if isinstance(run, Run):
        run = run.path
    return discover(images, labels, review=run, **options)


def prepare(
    source: ImageSource,
    *,
    review: AnyPath | None = None,
    out: AnyPath | None = None,
    device: AnyDevice = None,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    reporter: Reporter,
    began_at: float,
    **settings: Unpack[SettingArguments],
) -> DiscoveryJob:
    """Read the images and choose the settings; the arguments are those of `discover`.

    The default recipe depends on the device.
    """
    refinement = None
    chosen_device = choose_device(device)
    if review is None:
        folder = source.default_folder if out is None else Path(out)
        recipe = GPU_RECIPE
        if chosen_device.type == "cpu":
            recipe = CPU_RECIPE
        started = Run(folder)
        if started.has("config.yaml") and not force:  # it may have been started on another device
            recipe = started.config_as(DiscoverySettings).recipe
        chosen = choose_settings(**with_device_recipe(settings, recipe))
        collection = source.read()
    else:
        refinement = Refinement.open(review)
        folder = refinement.next_folder if out is None else Path(out)
        refinement.check_run_folder(folder, resume=resume, force=force)
        chosen = refinement.choose_settings(settings)
        collection = refinement.read(source)
        listener = reporter if is_main() else SILENT
        chosen = refinement.fit_settings(chosen, settings, collection, listener)
    return DiscoveryJob(
        collection=collection,
        settings=chosen,
        run=Run(folder),
        device=chosen_device,
        resume=resume,
        force=force,
        command=command,
        reporter=reporter,
        began_at=began_at,
        refinement=refinement,
    )


def demo_table(name: str) -> dict[str, str]:
    """Return a table of the photographs by file name: truth.csv, or labels.csv with the labels of
    half of the images of every other category."""
    with (PHOTOS / name).open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def run_demo(
    out: Path | str,
    *,
    train: bool | None = None,
    device: AnyDevice = None,
    reporter: Reporter = LOGGED,
) -> tuple[DiscoveredRun, Score]:
    """Discover the photographs, score the run against the truth, and write the report.

    Overwrites an earlier demo in the folder, and no other run. Only the scoring of the finished run
    sees the truth.
    """
    there = Run(Path(out))
    if there.has("provenance.json") and there.provenance.get("root") != str(PHOTOS):
        raise UsageError(
            f"{there.path}: holds a run that is not a demo; choose another --out, or delete that "
            "folder"
        )
    job = prepare(
        ImageSource(images=PHOTOS, labels=PHOTOS / "labels.csv"),
        out=out,
        train=train,
        device=device,
        force=True,
        reporter=reporter,
        began_at=time.monotonic(),
    )
    run_job(job)
    run = DiscoveredRun(job.run.path)
    score = score_run(run, demo_table("truth.csv"))
    run.report()  # with the score
    return run, score
