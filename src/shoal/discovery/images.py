"""Images and some labels in, a finished run folder out: `shoal discover`.

The collection is decoded once and embedded with the frozen encoder, which gives a first answer; then comes training,
with K and the snapshot chosen on validation images set aside from the loss, and Algorithm 1. A killed run goes on where
it stopped.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.arrays import Ints
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.collection import Collection
from shoal.data.pixels import Pixels, load_pixels
from shoal.device import choose_device, seed_everything
from shoal.discovery.answers import FROZEN, IN_WORDS, TRAINED, Answer, keep_other, make_answer
from shoal.discovery.cache import bound_cache
from shoal.discovery.choice import compare
from shoal.discovery.folder import fingerprint, take_folder
from shoal.discovery.narrator import Narrator
from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.discovery.stability import repeat_estimate
from shoal.discovery.thumbnails import make_thumbnails
from shoal.discovery.validation import (
    Withheld,
    check_collection,
    describe_withheld,
    doubt_estimate,
    doubt_labels,
    withhold,
)
from shoal.distributed import barrier, is_main, processes, told_by_main
from shoal.encoders.catalog import load_encoder
from shoal.encoders.embed import check_directions, embed
from shoal.encoders.vision import Encoder
from shoal.errors import DataError, ShoalError
from shoal.methods.catalog import DEFAULT_METHOD, get_method
from shoal.methods.method import Discovery, OnEpoch, Representation, Task
from shoal.runs import Run, Skip
from shoal.training.tensorboard import event_writer, tensorboard_writer

MAX_WAIT_S = 7 * 24 * 3600.0
"""How long processes wait for each other: the others do while the main one decodes, embeds and clusters."""


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
    tensorboard: bool = False,
) -> Run:
    """Discover the categories of a collection and write what was found to the run folder `out`.

    `resume` goes on with a run that was interrupted, and leaves a finished one as it is; `force` starts over in a
    folder that holds one. `tensorboard` writes each epoch's metrics for it, into the same folder. Several processes,
    started by torchrun, share embedding and training; the main one does the rest.
    """
    if tensorboard:
        tensorboard_writer()  # whether it is installed is said now, not after decoding and embedding
    settings, narrator = settings or choose_settings(), narrator or Narrator()
    place = choose_device(device)
    check_collection(collection, settings)
    with processes(place, timeout_s=MAX_WAIT_S):
        seed_everything(settings.seed)
        if is_main():
            run = _discover(collection, out, settings, place, resume, force, command, narrator, tensorboard)
        else:
            run = _help(collection, Run(Path(out)), settings, place, resume)
        barrier()
    return run


def _discover(
    collection: Collection,
    out: Path | str,
    settings: DiscoverySettings,
    place: torch.device,
    resume: bool,
    force: bool,
    command: str,
    narrator: Narrator,
    tensorboard: bool,
) -> Run:
    began, chosen = time.perf_counter(), settings.of_method
    # Split as training will split it, so that a number of blocks it does not have is refused before any image is read.
    n_tail_blocks = getattr(chosen, "n_tail_blocks", None)
    encoder = load_encoder(chosen.encoder, n_tail_blocks=n_tail_blocks, input_size=chosen.input_size).to(place)
    about = {"root": str(collection.root or ""), "encoder": chosen.encoder, "fingerprint": fingerprint(collection)}
    run = take_folder(out, settings, about["fingerprint"], resume=resume, force=force)
    if run.is_finished:
        narrator.say(f"{run.path} is finished, there is nothing left to do")
        for _ in range(1 + settings.is_trained):
            told_by_main(False, place)
        return run
    run.start(settings, seed=settings.seed, device=str(place), command=command, **about)
    narrator = narrator.heard_by(run.log)
    run.log(collection.describe())
    try:
        images = _decode(collection, run, settings, narrator)
        frozen = _embed_frozen(images, run, encoder, narrator)
    except DataError:
        if not run.has("frozen.npy"):
            run.abandon()
        raise
    answer = make_answer(FROZEN, _cluster(frozen, images, settings), images.collection, settings)
    other: Answer | None = None
    _tell_first(answer, images.collection, settings, narrator)
    if settings.is_trained:
        trained, stands = _train(frozen, answer, images, run, settings, resume, narrator, tensorboard)
        answer, other = (trained, answer) if stands else (answer, trained)
    _write(run, answer, other, images, settings, narrator)
    counts = {"n_images": len(images.collection), "n_labeled": images.collection.n_labeled}
    run.finish(seconds=round(time.perf_counter() - began, 3), **counts)
    run.drop_checkpoints()
    return run


def _decode(collection: Collection, run: Run, settings: DiscoverySettings, narrator: Narrator) -> _Readable:
    with narrator.bar("decoding images") as progress:
        pixels = load_pixels(collection, settings.pixel_size, progress=progress)
    if collection.root is not None:
        for gone in bound_cache(collection.root, settings.pixel_size):
            narrator.say(f"note: {gone.folder} was deleted, because the cache of decoded images had grown too large")
    if pixels.skipped:
        collection, first = collection.subset(pixels.index), pixels.skipped[0]
        left_out = f"{len(pixels.skipped):,} unreadable"
        try:
            check_collection(collection, settings)
        except ShoalError as error:
            raise DataError(f"{error} ({left_out}, such as {first.name}: {first.reason})") from error
        run.write_skipped(Skip(path=image.name, reason=image.reason) for image in pixels.skipped)
        narrator.say(f"{left_out}, listed in {run.path / 'skipped.csv'}")
    return _Readable(collection, pixels)


def _embed_frozen(images: _Readable, run: Run, encoder: Encoder, narrator: Narrator) -> Representation:
    """The embeddings of the encoder as it comes; an interrupted run has them already."""
    is_there = run.has("frozen.npy") and len(run.array("frozen")) == len(images.pixels)
    told_by_main(not is_there, encoder.device)
    if is_there:
        frozen = torch.from_numpy(np.array(run.array("frozen"))).to(encoder.device)
    else:
        with narrator.bar("embedding images") as progress:
            frozen = embed(images.pixels, encoder, progress=progress)
        check_directions(frozen, images.pixels.names, encoder.input_format.size)
        run.write_array("frozen", frozen.cpu().numpy())
    return Representation(embeddings=frozen, embed=lambda pixels: embed(pixels, encoder))


def _cluster(
    learned: Representation, images: _Readable, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Put images into clusters by the second half of the method, with every label there is."""
    return get_method(settings.method).cluster(
        learned,
        images.collection.labels,
        settings.of_method,
        n_clusters=settings.n_clusters or n_clusters,
        device=learned.embeddings.device,
    )


def _tell_first(first: Answer, collection: Collection, settings: DiscoverySettings, narrator: Narrator) -> None:
    """Say the first answer where another will follow, and on how few labels its number of categories rests."""
    if settings.is_trained:
        narrator.say(f"first answer, without training: {first.found.in_words()}")
    doubt = doubt_labels(collection.n_labeled, int((collection.class_sizes > 0).sum()))
    if doubt and settings.n_clusters is None:
        narrator.say(f"note: {doubt}")


def _train(
    frozen: Representation,
    first: Answer,
    images: _Readable,
    run: Run,
    settings: DiscoverySettings,
    resume: bool,
    narrator: Narrator,
    tensorboard: bool,
) -> tuple[Answer, bool]:
    """Train, and cluster by what was learned; and say whether that stands, or what the frozen encoder knows."""
    collection = images.collection
    withheld = withhold(collection, settings)
    for line in describe_withheld(collection, withheld):
        narrator.say(line)
    chosen = _fit_batch(settings, len(withheld.labels), narrator)
    doubt = doubt_estimate(collection, withheld, settings)
    if doubt:
        narrator.say(doubt)
    device = frozen.embeddings.device
    told_by_main(True, device)
    with narrator.bar("training") as progress:
        learned = get_method(settings.method).represent(
            _task(images, withheld, settings),
            chosen.of_method,
            device=device,
            folder=run.path,
            resume=resume,
            progress=progress,
            on_epoch=_epoch_listener(run, narrator, tensorboard),
        )
    stands = True
    if withheld.hidden:
        choice = compare(frozen, learned, collection.labels, collection.classes, withheld, chosen)
        run.write_json("choice", choice.to_dict())
        narrator.say(choice.in_words())
        stands = choice.keeps_training
    return _answer_trained(learned, first if doubt else None, images, withheld, chosen), stands


def _answer_trained(
    learned: Representation, first: Answer | None, images: _Readable, withheld: Withheld, settings: DiscoverySettings
) -> Answer:
    """The trained answer, with K of the first one where that is given."""
    collection = images.collection
    if first is not None:
        found = _cluster(learned, images, settings, first.discovery.n_clusters)
        answer = make_answer(TRAINED, replace(found, estimate=first.discovery.estimate), collection, settings)
        return replace(answer, counted_on=first.discovery.embeddings)
    found = _cluster(learned, images, settings)
    if found.estimate is None and settings.n_clusters is None and withheld.validation is not None:
        found = _with_estimate(found, collection.labels, withheld.validation, settings)
    return make_answer(TRAINED, found, collection, settings)


def _task(images: _Readable, withheld: Withheld, settings: DiscoverySettings) -> Task:
    return Task(
        pixels=images.pixels,
        labels=withheld.labels,
        validation=withheld.validation,
        n_clusters=settings.n_clusters,
    )


def _help(collection: Collection, run: Run, settings: DiscoverySettings, place: torch.device, resume: bool) -> Run:
    """Take a share of the embedding and of the training, when the main process has come to them."""
    chosen = settings.of_method
    if told_by_main(False, place):
        encoder = load_encoder(chosen.encoder, input_size=chosen.input_size).to(place)
        embed(load_pixels(collection, settings.pixel_size), encoder)
    if settings.is_trained and told_by_main(False, place):
        pixels = load_pixels(collection, settings.pixel_size)
        images = _Readable(collection.subset(pixels.index) if pixels.skipped else collection, pixels)
        withheld = withhold(images.collection, settings)
        chosen = _fit_batch(settings, len(withheld.labels), Narrator()).of_method
        task = _task(images, withheld, settings)
        get_method(settings.method).represent(task, chosen, device=place, folder=run.path, resume=resume)
    return run


def _epoch_listener(run: Run, narrator: Narrator, tensorboard: bool) -> OnEpoch:
    """Who is told an epoch's metrics: whoever listens to details, and TensorBoard where it was asked for."""
    write = event_writer(run.path) if tensorboard else None

    def tell(row: dict[str, Any]) -> None:
        accuracy = row["validation_accuracy"]
        seen = "" if accuracy is None else f", validation accuracy {100 * accuracy:.1f} %, K {row['n_clusters']}"
        narrator.detail(f"epoch {row['epoch']}: loss {row['loss']:.4f}{seen}, {row['seconds']:.1f} s")
        if write is not None:
            write(row)

    return tell


def _fit_batch(settings: DiscoverySettings, n_training: int, narrator: Narrator) -> DiscoverySettings:
    """Make the batch smaller where the collection is smaller than one."""
    chosen = settings.of_method
    wanted = chosen.training.batch_size
    if wanted <= n_training:
        return settings
    narrator.say(f"note: batches of {n_training:,} images instead of {wanted:,}, because there are no more to train on")
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, **{settings.method: smaller})


def _with_estimate(found: Discovery, labels: Ints, validation: Ints, settings: DiscoverySettings) -> Discovery:
    """The same with the curve from which training took K, for the record."""
    tree, rule = Tree(ward_linkage(found.embeddings[validation])), settings.of_method.inference.rule
    return replace(found, estimate=estimate_n_clusters(tree, labels[validation], rule=rule))


def _write(
    run: Run,
    answer: Answer,
    other: Answer | None,
    images: _Readable,
    settings: DiscoverySettings,
    narrator: Narrator,
) -> None:
    """Write the answer that stands, thumbnails, and the other answer where there is one."""
    answer.write(run, settings, _repeats(answer, settings, narrator))
    if answer.name == TRAINED:
        run.keep_model(run)
    with narrator.bar("making thumbnails"):
        run.write_thumbnails(make_thumbnails(images.pixels))
    if other is not None:
        narrator.say(f"{IN_WORDS[other.name]} is kept in {keep_other(run, other, settings).path}")
    run.log(answer.found.in_words())


def _repeats(answer: Answer, settings: DiscoverySettings, narrator: Narrator) -> list[int]:
    """The estimate of K on random parts of the images, as often as was asked."""
    if not settings.stability or settings.n_clusters is not None:
        return []
    inference = settings.of_method.inference
    if settings.method != DEFAULT_METHOD:  # the others shift nothing
        inference = replace(inference, estimate_shifts=0)
    embeddings = answer.discovery.embeddings if answer.counted_on is None else answer.counted_on
    with narrator.bar("repeating the estimate of K"):
        return repeat_estimate(embeddings, answer.found.given, settings.stability, inference, seed=settings.seed)
