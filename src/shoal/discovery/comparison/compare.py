"""`shoal.compare`: compare methods on a collection."""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from shoal.data.storage import as_address
from shoal.device import AnyDevice, choose_device
from shoal.discovery.comparison.comparison_job import ComparisonJob
from shoal.discovery.comparison.comparison_result import Comparison
from shoal.discovery.comparison.comparison_settings import ComparisonSettings, choose_comparison
from shoal.discovery.discovery_settings import SharedArguments
from shoal.discovery.job import ImageSource
from shoal.discovery.reporter import Reporter, default_reporter
from shoal.discovery.run_job import run_job
from shoal.files import AnyPath
from shoal.runs import Run


def compare(
    images: Any = None,
    labels: Any = None,
    methods: str | Sequence[str] | None = None,
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
    repeats: int = 1,
    max_minutes: float | None = None,
    out: AnyPath | None = None,
    device: AnyDevice = None,
    resume: bool = False,
    force: bool = False,
    verbose: bool = True,
    reporter: Reporter | None = None,
    **settings: Unpack[SharedArguments],
) -> Comparison:
    """Compare methods on a partly labeled collection, by labels held out from all of them.

    Parameters
    ----------
    images
        A folder, an address, a table or shards of images, as for `discover`.
    labels
        A table, data frame or mapping of paths to labels, or one label per image.
    methods
        Names, as in 'cms,gcd' or a list; cms, simgcd and gcd by default. The frozen encoder is
        always compared too.
    labeled
        With `unlabeled`, instead of `images`: a folder with a folder per category.
    unlabeled
        A folder of images without labels.
    path_column
        The column of the table that holds the paths.
    label_column
        The column of the table that holds the labels.
    allow_missing
        Continue if many rows of a table name images that do not exist.
    boxes
        Boxes in the images, each of which is an item: a JSON file of MegaDetector or COCO, a table
        or data frame (path, x, y, width, height and, optionally, label), or a folder of YOLO's text
        files.
    min_confidence
        Leave out boxes with a lower confidence; MegaDetector's typical threshold if not given.
    margin
        Widen boxes on each side by this share of their width and height.
    whole_images
        Images without a box are items.
    repeats
        Number of repetitions, each with other held-out labels and new training runs.
    max_minutes
        Minutes within which to end: training stops in time, and the finished methods are
        compared.
    out
        The folder to write; `runs/<name of the folder or file>-compare` by default.
    device
        'cpu', 'cuda' or 'cuda:1'; the best available one by default.
    resume
        Resume an interrupted comparison; a finished one is returned.
    force
        Overwrite an existing comparison.
    verbose
        Report progress on stderr; otherwise it goes to the logger `shoal`.
    reporter
        Receives the progress instead.
    **settings
        `n_clusters`, `encoder`, `epochs`, `seed`, `input_size`, `config` and `changes`, for all
        methods.

    Returns
    -------
    Comparison
        The ranked methods.

    Examples
    --------
    >>> import shoal
    >>> comparison = shoal.compare("photos/", "labels.csv", methods="cms,gcd")  # doctest: +SKIP
    >>> comparison.best.method, comparison.best.ties, comparison.command  # doctest: +SKIP
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
    comparison = choose_comparison(methods, repeats=repeats, max_minutes=max_minutes, **settings)
    job = prepare_comparison(
        source,
        comparison,
        out=out,
        device=device,
        resume=resume,
        force=force,
        reporter=reporter,
        began_at=began_at,
    )
    run_job(job)
    return Comparison.open(job.run.path)


def prepare_comparison(
    source: ImageSource,
    comparison: ComparisonSettings,
    *,
    out: AnyPath | None,
    device: AnyDevice,
    **options: Any,
) -> ComparisonJob:
    """Read the images; arguments as for `compare`, `options` are fields of the job."""
    folder = source.default_folder
    folder = folder.with_name(f"{folder.name}-compare") if out is None else Path(out)
    return ComparisonJob(
        collection=source.read(),
        settings=comparison.frozen,
        comparison=comparison,
        command_for=lambda config: discover_command(source, config),
        run=Run(folder),
        device=choose_device(device),
        **options,
    )


def discover_command(source: ImageSource, config: Path) -> str:
    """Return the command that runs `discover` with a config; a Python call if the images are not
    files."""
    paths = [source.images, source.labels, source.labeled, source.unlabeled, source.boxes]
    if not all(isinstance(path, str | os.PathLike | None) for path in paths):
        return f"shoal.discover(images, labels, config={str(config)!r})"
    words = ["shoal", "discover"]
    if source.images is not None:
        words.append(_as_typed(source.images))
    given = vars(source) | {"images": None, "margin": source.margin or None, "config": config}
    for name, value in given.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(_as_typed(value))
    return shlex.join(words)


def _as_typed(value: object) -> str:
    """Return a value as on a command line, an address with both its slashes."""
    if isinstance(value, os.PathLike):
        return str(as_address(value) or value)  # a Path drops one of them
    return str(value)
