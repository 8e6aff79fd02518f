"""The trained answer: the encoder's tail and a head trained on the collection, and whether that stands."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from shoal.arrays import Ints
from shoal.clustering.inference import unit_tree
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.discovery.answers import TRAINED, Answer, cluster, make_answer
from shoal.discovery.choice import compare
from shoal.discovery.progress import Outlook, Progress, about
from shoal.discovery.readable import Readable
from shoal.discovery.reporter import NOTE, SILENT, Listener, Reporter
from shoal.discovery.settings import DiscoverySettings
from shoal.discovery.stopping import ctrl_c_stops
from shoal.discovery.validation import Withheld, describe_withheld, takes_first_number, withhold
from shoal.distributed import told_by_main
from shoal.encoders.vision import Encoder
from shoal.errors import TooFewDistinct, UsageError
from shoal.methods.catalog import get_method
from shoal.methods.method import Discovery, OnEpoch, Representation, Task
from shoal.runs import Run
from shoal.training.bank import collapse_statistics, describe_collapse
from shoal.training.cost import Cost, measure_cost
from shoal.training.loop import OnProgress, StopTraining
from shoal.training.tensorboard import event_writer, tensorboard_writer


def check_tensorboard(settings: DiscoverySettings) -> None:
    """Refuse to write for TensorBoard where it is not installed, or where there will be no epoch to write."""
    if not settings.is_trained:
        raise UsageError("tensorboard: nothing is to be trained, so there is nothing to write; leave out --tensorboard")
    tensorboard_writer()


def answer_trained(
    frozen: Representation,
    first: Answer,
    images: Readable,
    run: Run,
    settings: DiscoverySettings,
    encoder: Encoder,
    resume: bool,
    reporter: Reporter,
    tensorboard: bool,
) -> tuple[Answer, Answer | None]:
    """Train, and cluster by what was learned: the answer that stands, that or the first one, and the other.

    There is no other where training has brought images together so that no cut makes as many categories, or was
    stopped before an epoch was finished. `encoder` is the one that is trained, as it comes.
    """
    collection = images.collection
    withheld = withhold(collection, settings)
    for line in describe_withheld(collection, withheld):
        reporter.say(line)
    chosen = _fit_batch(settings, len(withheld.labels), reporter)
    device, task = frozen.embeddings.device, _task(images, withheld, settings)
    training = chosen.of_method.training
    n_done = len(run.metrics) if resume else 0
    cost = measure_cost(task.training_data, encoder, chosen.of_method.head, training, n_done=n_done)
    reporter.say(_announce(cost, is_compared=bool(withheld.hidden)))
    told_by_main(True, device)
    watch = _collapse_watch(reporter.say)
    try:
        with _bars(reporter, cost) as progress:
            learned = get_method(settings.method).represent(
                task,
                chosen.of_method,
                device=device,
                folder=run.path,
                resume=resume,
                progress=progress,
                on_epoch=_epoch_listener(run, reporter, tensorboard, watch),
            )
    except StopTraining:
        _note_stopped(run, len(run.metrics), training.epochs, reporter)
        return first, None
    if len(learned.metrics) < training.epochs:
        _note_stopped(run, len(learned.metrics), training.epochs, reporter)
    statistics = collapse_statistics(learned.embeddings)
    watch(statistics)
    stands = True
    try:
        answer = _answer(learned, first, images, withheld, chosen)
        if withheld.hidden:
            counted = replace(chosen, n_clusters=first.discovery.n_clusters, stability=0)  # the same K for both
            choice = compare(frozen, learned, collection.labels, collection.classes, withheld, counted)
            choice = replace(choice, is_collapsed=describe_collapse(statistics) is not None)
            run.write_json("choice", choice.to_dict())
            reporter.say(choice.in_words())
            stands = choice.keeps_training
    except TooFewDistinct as error:
        reporter.say(f"{NOTE}training has left nothing to cluster ({error}), so the first answer stands")
        return first, None
    return (answer, first) if stands else (first, answer)


def _announce(cost: Cost, *, is_compared: bool) -> str:
    """Say what training will take, what it may bring, and how to do without the rest of it."""
    end = "it may help much or not at all"
    if is_compared:
        end += ", and labels that it does not see decide which answer stands"
    return (
        f"training takes {about(cost.seconds)} on this machine ({cost.n_views:,} views, then {cost.n_steps:,} steps); "
        f"{end}. Ctrl-C once stops it and keeps the best answer so far, Ctrl-C twice quits and --resume goes on"
    )


@contextmanager
def _bars(reporter: Reporter, cost: Cost) -> Iterator[OnProgress]:
    """Show views and then steps, with one estimate of the time left; Ctrl-C stops training where it is told of them."""
    outlooks = {
        "views": ("preparing views", Outlook("views", cost.view_s, then_s=cost.steps_s)),
        "steps": ("training", Outlook("steps", cost.step_s)),
    }
    shown: dict[str, Progress] = {}
    with ctrl_c_stops() as is_asked, ExitStack() as bars:

        def tell(unit: str, done: int, total: int) -> None:
            if unit not in shown:
                bars.close()  # the bar of the unit before
                shown[unit] = bars.enter_context(reporter.progress(*outlooks[unit]))
            shown[unit](done, total)
            if is_asked():
                raise StopTraining

        yield tell


def _note_stopped(run: Run, n_epochs: int, of: int, reporter: Reporter) -> None:
    """Write down that training was stopped before its end, and say so."""
    run.note(stopped_early={"epochs": n_epochs, "of": of})
    reporter.say(
        f"training was stopped after {n_epochs} of {of} epochs; the same command with --resume goes on with it"
    )


def help_train(images: Readable, run: Run, settings: DiscoverySettings, place: torch.device, resume: bool) -> None:
    """Take a share of the training that the main process does, without a word."""
    withheld = withhold(images.collection, settings)
    chosen = _fit_batch(settings, len(withheld.labels), SILENT).of_method
    task = _task(images, withheld, settings)
    get_method(settings.method).represent(task, chosen, device=place, folder=run.path, resume=resume)


def _answer(
    learned: Representation, first: Answer, images: Readable, withheld: Withheld, settings: DiscoverySettings
) -> Answer:
    """The trained answer, with K of the first one unless that is given or the paper's rule estimates it."""
    collection = images.collection
    if takes_first_number(settings):
        found = cluster(learned, collection.labels, settings, first.discovery.n_clusters)
        answer = make_answer(
            TRAINED, replace(found, estimate=first.discovery.estimate), collection, settings, withheld.judged
        )
        return replace(answer, counted_on=first.discovery.embeddings)
    found = cluster(learned, collection.labels, settings)
    if found.estimate is None and settings.n_clusters is None and withheld.validation is not None:
        found = _with_estimate(found, collection.labels, withheld.validation, settings)
    return make_answer(TRAINED, found, collection, settings, withheld.judged)


def _task(images: Readable, withheld: Withheld, settings: DiscoverySettings) -> Task:
    return Task(
        pixels=images.pixels,
        labels=withheld.labels,
        validation=withheld.validation,
        n_clusters=settings.n_clusters,
    )


def _collapse_watch(say: Listener) -> OnEpoch:
    """Who says once, when the statistics of embeddings show it, that training has collapsed."""
    told: list[str] = []

    def look(statistics: dict[str, Any]) -> None:
        found = describe_collapse(statistics)
        if found is not None and not told:
            told.append(found)
            say(NOTE + found)

    return look


def _epoch_listener(run: Run, reporter: Reporter, tensorboard: bool, watch: OnEpoch) -> OnEpoch:
    """Who is told an epoch's metrics: whoever listens to details, the watch, and TensorBoard where it was asked for."""
    write = event_writer(run.path) if tensorboard else None

    def tell(row: dict[str, Any]) -> None:
        accuracy = row["validation_accuracy"]
        seen = "" if accuracy is None else f", validation accuracy {100 * accuracy:.1f} %, K {row['n_clusters']}"
        reporter.detail(f"epoch {row['epoch']}: loss {row['loss']:.4f}{seen}, {row['seconds']:.1f} s")
        if row["epoch"] > 1:  # the bank is an epoch's first look: that of epoch 1 shows the head as it was drawn
            watch(row)
        if write is not None:
            write(row)

    return tell


def _fit_batch(settings: DiscoverySettings, n_training: int, reporter: Reporter) -> DiscoverySettings:
    """Make the batch smaller where the collection is smaller than one."""
    chosen = settings.of_method
    wanted = chosen.training.batch_size
    if wanted <= n_training:
        return settings
    reporter.say(f"note: batches of {n_training:,} images instead of {wanted:,}, because there are no more to train on")
    smaller = replace(chosen, training=replace(chosen.training, batch_size=n_training))
    return replace(settings, **{settings.method: smaller})


def _with_estimate(found: Discovery, labels: Ints, validation: Ints, settings: DiscoverySettings) -> Discovery:
    """The same with the curve from which training took K, for the record."""
    tree, rule = unit_tree(torch.as_tensor(found.embeddings[validation])), settings.of_method.inference.rule
    return replace(found, estimate=estimate_n_clusters(tree, labels[validation], rule=rule))
