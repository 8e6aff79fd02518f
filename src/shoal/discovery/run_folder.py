"""The run folder of a discovery: a new one, an interrupted one taken up again, or one that is finished already."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.checksums import digest_names
from shoal.data.collection import Collection
from shoal.discovery.reporter import Reporter
from shoal.errors import UsageError
from shoal.runs import Run, locked
from shoal.settings import differences


@contextmanager
def held_folder(
    run: Run,
    settings: Any,
    collection: Collection,
    *,
    resume: bool,
    force: bool,
    check_images: Callable[[], None],
) -> Iterator[str | None]:
    """Hold the folder of a new run, or with `resume` of one that was made of the same images with the same settings.

    Gives the checksum of the images, or None for a finished run, in which there is nothing left to do. One whose
    training was stopped early is unfinished from now on. `check_images` may refuse before `force` deletes a run.
    """
    checksum = collection_checksum(collection)
    how = {"resume": resume, "force": force}
    check_run_folder(run.path, settings, checksum, **how)
    if resume and run.is_complete:
        yield None
        return
    with locked(run.path):
        if force and run.has("provenance.json"):
            check_images()
        check_run_folder(run.path, settings, checksum, **how)
        if resume and run.is_complete:  # by another process, since
            yield None
            return
        if resume and run.is_stopped:
            run.note(finished=None)
        Run.create(run.path, force=force)
        yield checksum


def start_run(
    run: Run,
    settings: Any,
    collection: Collection,
    checksum: str,
    *,
    encoder: str,
    device: str,
    command: str,
    told: Iterable[str],
    reporter: Reporter,
) -> Reporter:
    """Begin a run, or go on with it; returns the reporter whose words, after those already told, are logged in it."""
    run.start(
        settings,
        seed=settings.seed,
        device=device,
        command=command,
        root=collection.where,
        folders=list(collection.folders),
        encoder=encoder,
        fingerprint=checksum,
        made_from=run.provenance.get("made_from") if run.has("provenance.json") else None,
    )
    for line in told:
        run.log(line)
    return reporter.also_to(run.log)


def check_run_folder(
    out: Path | str, settings: Any, images: str, *, resume: bool, force: bool
) -> Run:
    """Refuse a folder that `held_folder` would not take; makes and removes nothing."""
    if resume and force:
        raise UsageError(
            "resume and force: found both; one goes on with a run, the other deletes it; give one of them"
        )
    run = Run(Path(out))
    if not force and run.has("config.yaml") and run.has("provenance.json"):
        if resume:
            _check_same(run, settings, images)
        elif not run.is_finished:
            raise UsageError(
                f"{out}: holds an unfinished run; give --resume to go on with it, or --force to start over"
            )
        if resume and run.is_finished:  # with nothing to do, or with more training
            return run
    run.check_free(force=force)
    return run


def collection_checksum(collection: Collection) -> str:
    """A checksum of the images' names and sizes, labels and classes.

    Images in memory count with their content, those on a network or in shards with what the store says of them.

    It costs one look at each file and tells most mistakes before anything is decoded. A file replaced by another of the
    same size is told apart by its pixels, which `reading.record_inputs` compares before any embedding is used again.
    """
    digest = hashlib.sha256(digest_names(collection.names, collection.labels).encode())
    digest.update("\0".join(collection.classes).encode("utf-8", "surrogateescape"))
    if collection.earlier is not None:
        digest.update(collection.earlier.checksum.encode())
    if collection.stored is not None:
        digest.update("\0".join(collection.stored.states).encode())
        return digest.hexdigest()
    for i in range(len(collection)):
        source = collection.source(i)
        digest.update(
            str(_n_bytes(source)).encode()
            if isinstance(source, Path)
            else np.asarray(source).tobytes()
        )
    return digest.hexdigest()


def _check_same(run: Run, settings: Any, images: str) -> None:
    begun = run.config_as(type(settings))
    # A run that was stopped when the time was over may be given another time.
    different = differences(settings, replace(begun, max_minutes=settings.max_minutes))
    if run.provenance.get("fingerprint") != images:
        different.append("the images or their labels")
    if different:
        raise UsageError(
            f"{run.path}: cannot be resumed, because the run was made with other settings: {'; '.join(different)}; "
            "use those, or give --force to start over"
        )


def _n_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is skipped when its turn to be decoded comes
        return -1
