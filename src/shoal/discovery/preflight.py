"""Everything a discovery would refuse at once, looked at without doing anything: `shoal discover --dry-run`."""

from pathlib import Path
from typing import Any

import torch

from shoal.data.collection import Collection
from shoal.device import encoder_device
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.read_and_embed import check_collection, drop_unreadable
from shoal.discovery.run_folder import check_run_folder, collection_checksum
from shoal.discovery.trained.training_job import check_tensorboard
from shoal.encoders.catalog import ENCODERS, is_hub_id, load_encoder
from shoal.encoders.hub import is_cached
from shoal.errors import DataError, ShoalError
from shoal.runs import check_not_held


def check_discovery(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings,
    *,
    device: str | torch.device | None,
    resume: bool,
    force: bool,
    tensorboard: bool,
) -> dict[str, Any]:
    """Refuse what the run would refuse before it decodes images, and say what it would do; writes nothing.

    The encoder is loaded, unless that would take a download. Of the images the first bytes are read: what breaks off
    later is counted as readable here.
    """
    if tensorboard:
        check_tensorboard(settings)
    trunk_device = encoder_device(device)
    encoder = settings.of_method.encoder
    check_collection(collection, settings)
    is_here = check_encoder(settings)
    check_not_held(out)
    run = check_run_folder(
        out, settings, collection_checksum(collection), resume=resume, force=force
    )
    readable, n_unreadable = drop_unreadable(collection, settings.pixel_size)
    if n_unreadable:
        _check_rest(collection, readable, n_unreadable, settings)
    return {
        "counted": readable.count(n_unreadable=n_unreadable),
        "n_images": len(readable),
        "n_labeled": readable.n_labeled,
        "n_unlabeled": len(readable) - readable.n_labeled,
        "n_unreadable": n_unreadable + len(collection.left_out),
        "classes": list(readable.classes),
        "class_sizes": readable.class_sizes.tolist(),
        "notes": list(collection.notes),
        "out": str(out),
        "is_finished": resume and run.is_complete,
        "method": settings.method,
        "encoder": encoder,
        "encoder_is_here": is_here,
        "device": str(trunk_device),
        "trains": settings.is_trained,
    }


def check_encoder(settings: DiscoverySettings) -> bool:
    """Load the encoder as the run would, unless that would take a download; returns whether it is here."""
    name = settings.of_method.encoder
    is_here = (
        name in ENCODERS
        or Path(name).expanduser().exists()
        or not is_hub_id(name)
        or is_cached(name)
    )
    if is_here:
        _load(settings)
    return is_here


def _check_rest(
    collection: Collection, readable: Collection, n_unreadable: int, settings: DiscoverySettings
) -> None:
    """Refuse what is left without the files that are no images."""
    if n_unreadable == len(collection):
        raise DataError(f"none of the {n_unreadable:,} images can be decoded; are they images?")
    try:
        check_collection(readable, settings)
    except ShoalError as error:
        raise DataError(f"{error} ({n_unreadable:,} unreadable)") from error


def _load(settings: DiscoverySettings) -> None:
    """Load the encoder as the run would, with its trained blocks where it trains."""
    chosen = settings.of_method
    n_tail_blocks = chosen.n_tail_blocks if settings.is_trained else None
    load_encoder(chosen.encoder, n_tail_blocks=n_tail_blocks, input_size=chosen.input_size)
