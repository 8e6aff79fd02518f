"""The run folder of a discovery: a new one, an interrupted one taken up again, or one that is
finished already."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.checksums import digest_names
from shoal.data.collection import Collection
from shoal.errors import UsageError
from shoal.runs import Run
from shoal.settings import differences


def check_run_folder(
    out: Path | str, settings: Any, images: str, *, resume: bool, force: bool
) -> Run:
    """Refuse a folder that a job would not take; makes and removes nothing."""
    if resume and force:
        raise UsageError(
            "resume and force: found both; one continues a run, the other deletes it; give one of "
            "them"
        )
    run = Run(Path(out))
    if not force and run.has("config.yaml") and run.has("provenance.json"):
        if resume:
            _check_same(run, settings, images)
        elif not run.is_finished:
            raise UsageError(
                f"{out}: holds an unfinished run; give --resume to continue it, or --force to "
                "start over"
            )
        if resume and run.is_finished:  # with nothing to do, or with more training
            return run
    run.check_free(force=force)
    return run


def collection_checksum(collection: Collection) -> str:
    """A checksum of the images' names and sizes, labels and classes.

    Images in memory count with their content, those on a network or in shards with what the store
    says of them.

    It costs one look at each file and tells most mistakes before anything is decoded. A file
    replaced by another of the same size is told apart by its pixels, which
    `read_and_embed.record_inputs` compares before any embedding is used again.
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
        if isinstance(source, Path):
            digest.update(str(_n_bytes(source)).encode())
        else:
            digest.update(np.asarray(source).tobytes())
    return digest.hexdigest()


def _check_same(run: Run, settings: Any, images: str) -> None:
    begun = run.config_as(type(settings))
    # A run that was stopped when the time was over may be given another time.
    different = differences(settings, replace(begun, max_minutes=settings.max_minutes))
    if run.provenance.get("fingerprint") != images:
        different.append("the images or their labels")
    if different:
        raise UsageError(
            f"{run.path}: cannot be resumed, because the run was made with other settings: "
            f"{'; '.join(different)}; "
            "use those, or give --force to start over"
        )


def _n_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is skipped when its turn to be decoded comes
        return -1
