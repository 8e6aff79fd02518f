"""Images and some labels in, a finished run folder out: `shoal discover`.

The collection is decoded once and embedded with the frozen encoder, which gives a first answer; then comes training,
with K and the snapshot chosen on validation images set aside from the loss, and Algorithm 1. A killed run goes on where
it stopped.
"""

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from shoal.arrays import Floats, Ints
from shoal.clustering.inference import infer
from shoal.clustering.n_clusters import NClustersEstimate, estimate_n_clusters
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.collection import Collection
from shoal.data.pixels import Pixels, load_pixels
from shoal.device import choose_device, seed_everything
from shoal.discovery.embeddings import as_clusters
from shoal.discovery.narrator import Narrator
from shoal.discovery.outputs import Found
from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.discovery.stability import repeat_estimate
from shoal.discovery.thumbnails import make_thumbnails
from shoal.discovery.validation import check_collection, describe_hold_out, hold_out
from shoal.discovery.writing import Clusters, name_categories, write_found
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import embed
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.catalog import get_method
from shoal.methods.cms import CmsSettings
from shoal.methods.method import Task
from shoal.runs import Run, Skip
from shoal.settings import differences, load_settings


@dataclass(frozen=True, eq=False)
class _Readable:
    """The images that could be decoded."""

    collection: Collection
    pixels: Pixels


def discover_images(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings | None = None,
    *,
    device: str | torch.device | None = None,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    narrator: Narrator | None = None,
) -> tuple[Run, Found]:
    """Discover the categories of a collection and write what was found to the run folder `out`.

    `resume` goes on with a run that was interrupted; `force` starts over in a folder that holds one.
    """
    settings, narrator = settings or choose_settings(), narrator or Narrator()
    place, began = choose_device(device), time.perf_counter()
    check_collection(collection, settings)
    encoder = load_encoder(settings.cms.encoder, input_size=settings.cms.input_size).to(place)
    fingerprint = _fingerprint(collection)
    run = _open(out, settings, fingerprint, resume=resume, force=force)
    seed_everything(settings.seed)
    about = {"root": str(collection.root or ""), "encoder": settings.cms.encoder, "fingerprint": fingerprint}
    run.start(settings, seed=settings.seed, device=str(place), command=command, **about)
    images = _decode(collection, run, settings, narrator)
    frozen = _embed_frozen(images, run, encoder, narrator)
    labels = images.collection.labels
    first = infer(frozen, labels, settings.n_clusters, settings.cms.inference, device=place)
    clusters = as_clusters(frozen, first)
    if settings.train:
        narrator.say(f"first answer, without training: {_name(clusters, images, settings).in_words()}")
        clusters = _train(images, run, settings, place, resume, narrator)
    found = _name(clusters, images, settings)
    _write(run, found, clusters, images, settings, narrator)
    run.keep_model()
    counts = {"n_images": len(labels), "n_labeled": images.collection.n_labeled}
    run.finish(seconds=round(time.perf_counter() - began, 3), **counts)
    run.drop_checkpoints()
    return run, found


def _open(out: Path | str, settings: DiscoverySettings, fingerprint: str, *, resume: bool, force: bool) -> Run:
    """The folder of a new run, or with `resume` of an unfinished one that was made the same way."""
    run = Run(Path(out))
    is_unfinished = run.has("config.yaml") and run.has("provenance.json") and not run.is_finished
    if is_unfinished and not resume and not force:
        raise UsageError(f"{out}: holds an unfinished run; give --resume to go on with it, or --force to start over")
    if is_unfinished and resume and not force:
        different = differences(settings, load_settings(DiscoverySettings, run.path / "config.yaml"))
        if run.provenance.get("fingerprint") != fingerprint:
            different.append("the images or their labels")
        if different:
            raise UsageError(
                f"{out}: cannot be resumed, because the run was made with other settings: {'; '.join(different)}; "
                "use those, or give --force to start over"
            )
    return Run.create(out, force=force)


def _fingerprint(collection: Collection) -> str:
    """A digest of the images' names and sizes (their content, where they are in memory), labels and classes."""
    digest = hashlib.sha256(collection.labels.tobytes())
    for name in (*collection.names, "", *collection.classes):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    for i in range(len(collection)):
        source = collection.source(i)
        digest.update(str(_n_bytes(source)).encode() if isinstance(source, Path) else np.asarray(source).tobytes())
    return digest.hexdigest()


def _n_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is skipped when its turn to be decoded comes
        return -1


def _decode(collection: Collection, run: Run, settings: DiscoverySettings, narrator: Narrator) -> _Readable:
    with narrator.bar("decoding images") as progress:
        pixels = load_pixels(collection, settings.pixel_size, progress=progress)
    if pixels.skipped:
        run.write_skipped(Skip(path=image.name, reason=image.reason) for image in pixels.skipped)
        narrator.say(f"{len(pixels.skipped):,} unreadable, listed in {run.path / 'skipped.csv'}")
        collection = collection.subset(pixels.index)
        check_collection(collection, settings)
    return _Readable(collection, pixels)


def _embed_frozen(images: _Readable, run: Run, encoder: Encoder, narrator: Narrator) -> torch.Tensor:
    """(N, D) embeddings of the encoder as it comes; an interrupted run has them already."""
    if run.has("frozen.npy") and len(run.array("frozen")) == len(images.pixels):
        return torch.from_numpy(np.array(run.array("frozen"))).to(encoder.device)
    with narrator.bar("embedding images") as progress:
        frozen = embed(images.pixels, encoder, progress=progress)
    run.write_array("frozen", frozen.cpu().numpy())
    return frozen


def _train(
    images: _Readable,
    run: Run,
    settings: DiscoverySettings,
    device: torch.device,
    resume: bool,
    narrator: Narrator,
) -> Clusters:
    labels = images.collection.labels
    split = hold_out(images.collection, settings)
    validation = None if split is None else split.validation
    for line in [] if split is None else describe_hold_out(images.collection, split):
        narrator.say(line)
    chosen = _fit_batch(settings.seeded(), len(labels) if split is None else len(split.training), narrator)
    task = Task(pixels=images.pixels, labels=labels, validation=validation, n_clusters=settings.n_clusters)
    with narrator.bar("training") as progress:
        found = get_method(settings.method).run(
            task, chosen, device=device, folder=run.path, resume=resume, progress=progress
        )
    estimate = None
    if settings.n_clusters is None and validation is not None:
        estimate = _estimate(found.embeddings[validation], labels[validation], settings.cms.inference.rule)
    return Clusters(
        labels=found.clusters,
        embeddings=found.embeddings,
        shifted=found.shifted,
        linkage=found.linkage,
        accuracies=found.accuracies,
        n_shifts=found.n_shifts,
        estimate=estimate,
    )


def _fit_batch(settings: CmsSettings, n_training: int, narrator: Narrator) -> CmsSettings:
    """Make the batch smaller where the collection is smaller than one."""
    wanted = settings.training.batch_size
    if wanted <= n_training:
        return settings
    narrator.say(f"note: batches of {n_training} images instead of {wanted}, because there are no more to train on")
    return replace(settings, training=replace(settings.training, batch_size=n_training))


def _estimate(embeddings: Floats, labels: Ints, rule: str) -> NClustersEstimate:
    """The curve from which training took K, for the record."""
    return estimate_n_clusters(Tree(ward_linkage(embeddings)), labels, rule=rule)


def _name(clusters: Clusters, images: _Readable, settings: DiscoverySettings) -> Found:
    found = images.collection
    n_neighbors = settings.shift.n_neighbors
    return name_categories(clusters, found.names, found.labels, found.classes, n_neighbors=n_neighbors)


def _write(
    run: Run,
    found: Found,
    clusters: Clusters,
    images: _Readable,
    settings: DiscoverySettings,
    narrator: Narrator,
) -> None:
    shift = settings.shift
    repeats: list[int] = []
    if settings.stability and settings.n_clusters is None:
        with narrator.bar("repeating the estimate of K"):
            repeats = repeat_estimate(
                clusters.embeddings,
                found.given,
                settings.stability,
                rule=settings.cms.inference.rule,
                seed=settings.seed,
            )
        narrator.say(f"K over {len(repeats)} random parts of the collection: {min(repeats)} to {max(repeats)}")
    write_found(run, found, clusters, n_neighbors=shift.n_neighbors, alpha=shift.alpha, repeats=repeats)
    with narrator.bar("making thumbnails"):
        run.write_thumbnails(make_thumbnails(images.pixels))
