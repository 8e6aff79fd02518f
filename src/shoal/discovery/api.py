"""The Python interface: `shoal.discover`, `shoal.load` and `shoal.refine`."""

import os
from pathlib import Path
from typing import Any

import torch

from shoal.device import choose_device, encoder_device
from shoal.discovery.answers import answer_in_words
from shoal.discovery.discovered_run import DiscoveredRun
from shoal.discovery.discovery_settings import (
    SHORT_RECIPE,
    DiscoverySettings,
    choose_settings,
    shorter_on_cpu,
)
from shoal.discovery.image_source import ImageSource
from shoal.discovery.pipeline import DiscoveryJob
from shoal.discovery.reporter import Reporter, stderr_reporter
from shoal.discovery.reviewed.refinement import prepare_refinement
from shoal.discovery.run_job import run_job
from shoal.distributed import is_main
from shoal.runs import Run


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
        The column of the table that holds the paths, where it has an uncommon name.
    label_column
        The column of the table that holds the labels, likewise.
    allow_missing
        Go on where more than a few per cent of a table's rows name images that are not there, or
        shards are damaged.
    review
        A reviewed run of these images, to go on from: as `refine`.
    out
        The run folder to write; `runs/<name of the images>` if not given.
    device
        'cpu', 'cuda' or 'cuda:1'; the best one there is if not given.
    resume
        Go on with an interrupted run; a finished one is returned as it is.
    force
        Overwrite a run that is there.
    verbose
        Show on stderr what was found and what happens, with progress; else it goes to the logger
        `shoal`, at level INFO, notes at level WARNING.
    reporter
        Says it elsewhere instead.
    tensorboard
        Write each epoch's metrics for TensorBoard into the run folder.
    **settings
        `n_clusters` (one number, or a range to estimate it in, (30, 50)), `method`, `encoder`,
        `epochs`, `train`, `seed`, `recipe`, `config`, `protocol`, `input_size`, `answer` ('better'
        or 'trained'), `changes` ({"training.lr": 0.1}, as `--set`) and the other flags of `shoal
        discover`.

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
    if reporter is None:
        reporter = stderr_reporter() if verbose and is_main() else Reporter()
    source = ImageSource(
        images=images,
        labels=labels,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
    )
    job = prepare(
        source,
        review=review,
        out=out,
        device=device,
        resume=resume,
        force=force,
        tensorboard=tensorboard,
        reporter=reporter,
        **settings,
    )
    run_job(job)
    run = DiscoveredRun(job.run.path)
    if is_main():
        reporter.say(f"{answer_in_words(run)} Written to {run.path}.")
    return run


def refine(
    run: str | os.PathLike[str] | Run,
    images: Any = None,
    labels: Any = None,
    **options: Any,
) -> DiscoveredRun:
    """Discover again with what people decided about a run, into a new run: runs/photos-2 after
    runs/photos.

    Confirmed and moved images are labels, and given labels count until somebody decides about that
    very image. Categories that a person has named or confirmed images of are known, and rejected
    images stay out of those they were thrown out of. There are as many categories as people left,
    unless `n_clusters` asks for another number; without training it goes on from these. Names and
    ids stay wherever a category has mostly the same images; changes.json in the new run says what
    changed, and its review is the old one, done again.

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
    review: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    tensorboard: bool = False,
    command: str = "",
    reporter: Reporter,
    **settings: Any,
) -> DiscoveryJob:
    """Read the images and choose the settings; the arguments are those of `discover`.

    On a CPU training is shorter, unless something is said of it.
    """
    refinement = None
    if review is not None:
        told = reporter if is_main() else Reporter()
        collection, folder, chosen, refinement = prepare_refinement(
            Path(review), source, settings, out=out, resume=resume, reporter=told
        )
    else:
        folder = source.default_folder if out is None else Path(out)
        is_short = choose_device(device).type == "cpu"
        begun = Run(folder)
        if resume and begun.has("config.yaml"):  # it may have been begun on another device
            is_short = begun.config_as(DiscoverySettings).recipe == SHORT_RECIPE
        if is_short:
            settings = shorter_on_cpu(settings)
        chosen = choose_settings(**settings)
        collection = source.read()
    return DiscoveryJob(
        collection=collection,
        settings=chosen,
        run=Run(folder),
        encoder_device=encoder_device(device),
        resume=resume,
        force=force,
        tensorboard=tensorboard,
        command=command,
        reporter=reporter,
        refinement=refinement,
    )
