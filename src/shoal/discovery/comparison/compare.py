"""`shoal.compare`: methods on a collection of one's own, as one Python call."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.data.readers import read_collection
from shoal.data.storage.addresses import as_address
from shoal.device import encoder_device
from shoal.discovery.api import default_folder, split_arguments
from shoal.discovery.comparison.comparison_job import Command, check_kept, compare_images
from shoal.discovery.comparison.comparison_result import Comparison
from shoal.discovery.comparison.comparison_settings import (
    FROZEN,
    ComparisonSettings,
    choose_comparison,
    is_for,
    name_of,
)
from shoal.discovery.discovery_settings import shorter_on_cpu
from shoal.discovery.preflight import check_encoder
from shoal.discovery.read_and_embed import drop_unreadable
from shoal.discovery.reporter import Reporter, stderr_reporter
from shoal.discovery.run_folder import check_run_folder, collection_checksum
from shoal.distributed import is_main
from shoal.methods.registry import DEFAULT_METHOD, get_method
from shoal.methods.setting_changes import plain_name
from shoal.runs import check_not_held


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
    """Compare methods on a partly labeled collection, by labels that are kept from all of them alike.

    Parameters
    ----------
    images
        As for `discover`, and so are the next six.
    labels
        A table, data frame or mapping of paths to labels, or one label per image.
    methods
        Names, 'cms,gcd' or a list; cms, simgcd and gcd if not given. The encoder as it comes is compared too.
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
        `n_clusters`, `encoder`, `epochs`, `seed`, `input_size`, `config` and `changes`, for all methods.

    Returns
    -------
    Comparison
        The methods, ranked.

    Examples
    --------
    >>> import shoal
    >>> comparison = shoal.compare("photos/", "labels.csv", methods="cms,simgcd,gcd")  # doctest: +SKIP
    >>> comparison.best.method, comparison.best.ties, comparison.command  # doctest: +SKIP
    """
    reporter = reporter or (stderr_reporter() if verbose and is_main() else Reporter())
    job = prepare_comparison(
        images,
        labels,
        methods,
        labeled=labeled,
        unlabeled=unlabeled,
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        out=out,
        device=device,
        resume=resume,
        force=force,
        draws=draws,
        max_minutes=max_minutes,
        **settings,
    )
    return job.run(reporter)


@dataclass(frozen=True, kw_only=True)
class ComparisonJob:
    """A comparison that nothing stands against yet: it can be checked, or run."""

    collection: Collection
    out: Path
    settings: ComparisonSettings
    command_for: Command
    """How a method is run on everything."""
    device: str | torch.device | None
    resume: bool
    force: bool

    def check(self) -> dict[str, Any]:
        """Refuse what the run would refuse before it decodes images, and say what it would do; writes nothing."""
        return preview(self.collection, self.out, self.settings, **self._how)

    def run(self, reporter: Reporter, *, command: str = "") -> Comparison:
        """Compare, and write the folder with its page."""
        work: dict[str, Any] = {
            "command_for": self.command_for,
            "command": command,
            "reporter": reporter,
            **self._how,
        }
        return compare_images(self.collection, self.out, self.settings, **work)

    @property
    def _how(self) -> dict[str, Any]:
        return {"device": self.device, "resume": self.resume, "force": self.force}


def prepare_comparison(
    images: Any,
    labels: Any,
    methods: str | Sequence[str] | None,
    *,
    out: str | os.PathLike[str] | None,
    device: str | torch.device | None,
    resume: bool,
    force: bool,
    **arguments: Any,
) -> ComparisonJob:
    """Read the images and choose the settings of all methods; the arguments are those of `compare`."""
    given, settings = split_arguments(images, labels, arguments)
    chosen = choose_comparison(methods, **settings)
    usual = default_folder(arguments["unlabeled"] if images is None else images)
    return ComparisonJob(
        collection=read_collection(**given),
        out=Path(out) if out is not None else usual.with_name(f"{usual.name}-compare"),
        settings=chosen,
        command_for=lambda name: command_of(name, given, settings),
        device=device,
        resume=resume,
        force=force,
    )


def preview(
    collection: Collection,
    out: Path,
    settings: ComparisonSettings,
    *,
    device: str | torch.device | None,
    resume: bool,
    force: bool,
) -> dict[str, Any]:
    """What a comparison would do; as `ComparisonJob.check`."""
    trunk_device = encoder_device(device)
    draws = check_kept(collection, settings)
    is_here = [check_encoder(each) for each in settings.methods]
    check_not_held(out)
    run = check_run_folder(
        out, settings, collection_checksum(collection), resume=resume, force=force
    )
    readable, n_unreadable = drop_unreadable(collection, settings.first.pixel_size)
    if n_unreadable:
        draws = check_kept(readable, settings)
    trained = [each for each in settings.methods if each.is_trained]
    return {
        "counted": readable.count(n_unreadable=n_unreadable),
        "kept": [kept.in_words() for kept in draws],
        "methods": [name_of(each) for each in settings.methods],
        "n_trainings": len(trained) * settings.draws,
        "epochs": {each.method: int(each.of_method.training.epochs) for each in trained},
        "n_clusters": settings.first.n_clusters,
        "notes": list(collection.notes),
        "out": str(out),
        "is_finished": resume and run.is_complete,
        "encoder": settings.first.of_method.encoder,
        "encoder_is_here": all(is_here),
        "device": str(trunk_device),
    }


def command_of(method: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The command that runs a method on everything; a call of Python where the images are no files."""
    own = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in ("draws", "max_minutes")
    }
    changes = _changes_of(method, own.pop("changes", None) or {})
    if method == FROZEN or not get_method(method).trains:
        own.pop("epochs", None)
    elif shorter_on_cpu(
        {"method": method, "changes": changes, **own}
    ):  # which is not what was ranked
        own["recipe"] = "default"
    chosen = {"train": False} if method == FROZEN else {"method": method}
    paths = [given[name] for name in ("source", "labels", "labeled", "unlabeled")]
    if not all(path is None or isinstance(path, str | os.PathLike) for path in paths):
        rest = {**chosen, **own, **({"changes": changes} if changes else {})}
        return f"shoal.discover(images, labels, {', '.join(f'{name}={value!r}' for name, value in rest.items())})"
    words = [
        "shoal",
        "discover",
        *([] if given["source"] is None else [str(_written(given["source"]))]),
    ]
    for name in ("labels", "labeled", "unlabeled", "path_column", "label_column"):
        words += _flag(name, _written(given[name]))
    words += ["--allow-missing"] if given["allow_missing"] else []
    words += ["--no-train"] if method == FROZEN else ["--method", method]
    for name, value in own.items():
        words += _flag(name, value)
    for name, value in changes.items():
        words += ["--set", f"{name}={json.dumps(value, ensure_ascii=False)}"]
    return shlex.join(words)


def _changes_of(method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that one method takes, without its name in front."""
    runs = DEFAULT_METHOD if method == FROZEN else method
    is_own = {
        name: is_for(runs, name) and not (method == FROZEN and plain_name(name) != name)
        for name in changes
    }
    own = {plain_name(name): value for name, value in changes.items() if is_own[name]}
    return {
        name: value
        for name, value in own.items()
        if not (method == FROZEN and name.startswith("training."))
    }


def _written(location: Any) -> Any:
    """An address with both its slashes, of which a `Path` has one; anything else as it is."""
    return (as_address(location) or location) if isinstance(location, os.PathLike) else location


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    text = "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return [f"--{name.replace('_', '-')}", text]
