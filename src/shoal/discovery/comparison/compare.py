"""`shoal.compare`: methods on a collection of one's own, as one Python call."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.data.storage.addresses import as_address
from shoal.device import encoder_device
from shoal.discovery.comparison.comparison_job import ComparisonJob
from shoal.discovery.comparison.comparison_result import Comparison
from shoal.discovery.comparison.comparison_settings import FROZEN, choose_comparison, is_for
from shoal.discovery.discovery_settings import shorter_on_cpu
from shoal.discovery.image_source import ImageSource
from shoal.discovery.reporter import Reporter, stderr_reporter
from shoal.discovery.run_job import run_job
from shoal.distributed import is_main
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.setting_changes import plain_name
from shoal.runs import Run


def compare(
    images: Any = None,
    labels: Any = None,
    methods: str | Sequence[str] | None = None,
    *,
    labeled: str | os.PathLike[str] | None = None,
    unlabeled: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    draws: int = 1,
    max_minutes: float | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    verbose: bool = True,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Comparison:
    """Compare methods on a partly labeled collection, by labels that are kept from all of them
    alike.

    Parameters
    ----------
    images
        As for `discover`, and so are the next six.
    labels
        A table, data frame or mapping of paths to labels, or one label per image.
    methods
        Names, 'cms,gcd' or a list; cms, simgcd and gcd if not given. The encoder as it comes is
        compared too.
    labeled
        With `unlabeled`, instead of `images`: a folder with a folder per category.
    unlabeled
        A folder of images without labels.
    path_column
        The column of the table that holds the paths.
    label_column
        The column of the table that holds the labels.
    allow_missing
        Go on where many rows of a table name images that are not there.
    draws
        How often labels are kept anew and every method is trained.
    max_minutes
        Minutes after which training is stopped; the methods that are finished are compared.
    out
        The folder to write; `runs/<name of the images>-compare` if not given.
    device
        'cpu', 'cuda' or 'cuda:1'; the best one there is if not given.
    resume
        Go on with an interrupted comparison; a finished one is returned as it is.
    force
        Overwrite a comparison that is there.
    verbose
        Show on stderr what happens; else it goes to the logger `shoal`.
    reporter
        Says it elsewhere instead.
    **settings
        `n_clusters`, `encoder`, `epochs`, `seed`, `input_size`, `config` and `changes`, for all
        methods.

    Returns
    -------
    Comparison
        The methods, ranked.

    Examples
    --------
    >>> import shoal
    >>> comparison = shoal.compare("photos/", "labels.csv", methods="cms,gcd")  # doctest: +SKIP
    >>> comparison.best.method, comparison.best.ties, comparison.command  # doctest: +SKIP
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
    job = prepare_comparison(
        source,
        methods,
        draws=draws,
        max_minutes=max_minutes,
        out=out,
        device=device,
        resume=resume,
        force=force,
        reporter=reporter,
        **settings,
    )
    run_job(job)
    return Comparison.open(job.run.path)


def prepare_comparison(
    source: ImageSource,
    methods: str | Sequence[str] | None,
    *,
    draws: int = 1,
    max_minutes: float | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    reporter: Reporter,
    **settings: Any,
) -> ComparisonJob:
    """Read the images and choose the settings of all methods; the arguments are those of
    `compare`."""
    compared = choose_comparison(methods, draws=draws, max_minutes=max_minutes, **settings)
    usual = source.default_folder
    folder = usual.with_name(f"{usual.name}-compare") if out is None else Path(out)
    return ComparisonJob(
        collection=source.read(),
        settings=compared.first,
        compared=compared,
        command_for=lambda name: command_of(name, source, settings),
        run=Run(folder),
        encoder_device=encoder_device(device),
        resume=resume,
        force=force,
        command=command,
        reporter=reporter,
    )


def command_of(method: str, source: ImageSource, settings: Mapping[str, Any]) -> str:
    """The command that runs a method on everything; a call of Python where the images are no
    files."""
    own = {name: value for name, value in settings.items() if value is not None}
    changes = _changes_of(method, own.pop("changes", None) or {})
    if method == FROZEN or not get_method(method).trains:
        own.pop("epochs", None)
    elif "recipe" in shorter_on_cpu({"method": method, "changes": changes, **own}):
        own["recipe"] = "default"  # the short one is not what was ranked
    paths = [source.images, source.labels, source.labeled, source.unlabeled]
    if not all(path is None or isinstance(path, str | os.PathLike) for path in paths):
        chosen = {"train": False} if method == FROZEN else {"method": method}
        if changes:
            own["changes"] = changes
        given = ", ".join(f"{name}={value!r}" for name, value in {**chosen, **own}.items())
        return f"shoal.discover(images, labels, {given})"
    words = ["shoal", "discover"]
    if source.images is not None:
        words.append(_written(source.images))
    for name in ("labels", "labeled", "unlabeled", "path_column", "label_column"):
        words += _flag(name, getattr(source, name))
    if source.allow_missing:
        words.append("--allow-missing")
    words += ["--no-train"] if method == FROZEN else ["--method", method]
    for name, value in own.items():
        words += _flag(name, value)
    for name, value in changes.items():
        words += ["--set", f"{name}={json.dumps(value, ensure_ascii=False)}"]
    return shlex.join(words)


def _changes_of(method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that one method takes, without its name in front; of the frozen encoder those for
    all methods."""
    own = {}
    for name, value in changes.items():
        if method == FROZEN:
            is_own = is_for(DEFAULT_METHOD, name) and plain_name(name) == name
            is_own = is_own and not name.startswith("training.")
        else:
            is_own = is_for(method, name)
        if is_own:
            own[plain_name(name)] = value
    return own


def _written(value: object) -> str:
    """As one would type it: a range as 30-50, an address with both its slashes, of which a `Path`
    has one."""
    if isinstance(value, tuple | list):
        return "-".join(map(str, value))
    if isinstance(value, os.PathLike):
        return str(as_address(value) or value)
    return str(value)


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name.replace('_', '-')}", _written(value)]
