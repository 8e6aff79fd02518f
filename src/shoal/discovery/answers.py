"""The answers of a discovery, by the encoder as it comes and as it was trained, and how they become
runs.

The first answer, without training, is kept inside the run as a run of its own while training goes
on, to be looked at, exported and assigned to like any run. In the end the answer that stands is the
run, and the other is kept inside it.

N images, D columns.
"""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.calibration import UNCHECKED_CONFIDENCE, Calibration
from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.discovery.job import Job
from shoal.discovery.named_categories import NamedCategories, name_categories, write_categories
from shoal.files import make_folder, write_text
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import (
    ANSWERS,
    MIXED_FROM,
    UNSURE_BELOW,
    Run,
    column,
    locked,
    thumbnail_files,
)
from shoal.text import shown
from shoal.training.model import TaskShape
from shoal.words import against_range, count, first_few, interval_in_words, is_wide, plural

FROZEN, TRAINED = ANSWERS

UNCHECKED = (
    f"There are too few labels to check confidence, so none is above {UNCHECKED_CONFIDENCE}."
)

IN_WORDS = {FROZEN: "the frozen result", TRAINED: "the trained result"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What was found with the encoder as it comes, or as it was trained."""

    name: str
    """'frozen' or 'trained'."""
    discovery: Discovery
    named: NamedCategories
    frozen_weight: float = 0.0
    """Of a trained answer: the weight of the frozen encoder's embeddings beside the trained
    ones."""
    n_tail_blocks: int | None = None
    """Of a trained answer: how many blocks were trained; None: what the encoder's catalog entry
    says."""
    trained_in: Path | None = None
    """Of a trained answer: the folder with its networks and metrics."""
    shape: TaskShape | None = None
    """Of a trained answer: the shape of the task that its model was made for."""

    def in_words(self, run: Run) -> str:
        """The same as `answer_in_words` of the run that holds it, whose rows need not be read for
        that."""
        return answer_in_words(run, int((self.named.members.confidence < UNSURE_BELOW).sum()))

    def write(self, run: Run, settings: DiscoverySettings) -> None:
        """Give a run the tables and arrays and, where something was trained, networks and
        metrics."""
        write_categories(
            run,
            self.named,
            self.discovery,
            n_neighbors=settings.shift.n_neighbors,
            alpha=settings.shift.alpha,
        )
        if self.trained_in is None:
            return
        assert self.shape is not None
        trained = Run(self.trained_in)
        trained.keep_model(run)
        model: dict[str, Any] = {
            "n_tail_blocks": self.n_tail_blocks,
            "frozen_weight": self.frozen_weight,
            "shape": asdict(self.shape),
        }
        if self.discovery.predicted is not None:
            model["classifier"] = self._classifier(self.discovery.predicted)
        run.write_json("model", model)
        if trained.path != run.path:
            trained.share("metrics.jsonl", run)

    def _classifier(self, predicted: Ints) -> list[int]:
        """The category of most images of each output of the model's classifier, -1 without any."""
        is_free = self.named.given == UNLABELED
        # A labeled image may be in another category than the one predicted, so it counts where
        # there is no other.
        counts = is_free | ~np.isin(predicted, predicted[is_free])
        both = np.stack([predicted, self.named.categories])[:, counts]
        pairs, sizes = np.unique(both, axis=1, return_counts=True)
        # The largest of each output is written last.
        pairs = pairs[:, np.argsort(sizes, kind="stable")]
        categories = np.full(int(predicted.max()) + 1, UNLABELED)
        categories[pairs[0]] = np.asarray(self.named.ids)[pairs[1]]
        classifier: list[int] = categories.tolist()
        return classifier


def cluster(
    learned: Representation,
    labels: Ints,
    settings: DiscoverySettings,
    n_clusters: int | None = None,
) -> Discovery:
    """Put images into clusters as the method does, with every label there is."""
    return get_method(settings.method).cluster(
        learned,
        labels,
        settings.of_method,
        n_clusters=settings.n_clusters or n_clusters,
        device=learned.embeddings.device,
    )


def make_answer(
    name: str,
    discovery: Discovery,
    collection: Collection,
    settings: DiscoverySettings,
    *,
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    otherwise: Calibration | None = None,
    frozen: Tensor | None = None,
) -> Answer:
    """Turn clusters into named categories; the other arguments are those of `name_categories`."""
    named = name_categories(
        discovery,
        collection.names,
        collection.labels,
        collection.classes,
        n_neighbors=settings.shift.n_neighbors,
        earlier=collection.earlier,
        unseen=unseen,
        calibrated_on=calibrated_on,
        otherwise=otherwise,
        frozen=frozen,
    )
    return Answer(name=name, discovery=discovery, named=named)


def keep_answer(
    run: Run, answer: Answer, settings: DiscoverySettings, folder: Path | None = None, **more: Any
) -> Run:
    """Write an answer as a finished run of its own with its report, inside the run whose thumbnails
    it shares.

    It goes to `folder`, the one of its name if not given; `more` is noted in its
    provenance.json.
    """
    other = Run.create(folder or run.path / answer.name, force=True)
    origin = run.provenance
    names = ("device", "command", "root", "folders", "encoder", "fingerprint")
    about = {name: origin[name] for name in names}
    told = replace(settings, train=answer.name == TRAINED)
    other.start(told, seed=settings.seed, **about)
    answer.write(other, settings)
    for part in (*(file.name for file in thumbnail_files(run.path)), "skipped.csv"):
        if run.has(part):
            run.share(part, other)
    given = answer.named.given
    other.finish(answer=answer.name, n_images=len(given), n_labeled=int((given >= 0).sum()), **more)
    write_report(other)
    return other


def write_answers(job: Job, answer: Answer, other: Answer | None) -> None:
    """Write the answer that stands, and see to it that the other one, where there is one, is kept
    beside it.

    A run that was stopped early and goes on has an answer already; what is not written again of it
    is removed.
    """
    run = job.run
    run.drop("accuracy.json", "map.npz", "model.safetensors", "model.json", "report.html")
    old = Run(run.path / TRAINED)
    if old.has("provenance.json") and (other is None or other.name != TRAINED):
        old.abandon()
    answer.write(run, job.settings)
    if answer.name == FROZEN and job.settings.is_trained:
        Run(run.path / FROZEN).abandon()  # the run itself is the first answer now
    if other is not None:
        if other.name == TRAINED:
            keep_answer(run, other, job.settings)
        job.reporter.say(f"{IN_WORDS[other.name]} is kept in {run.path / other.name}")
    run.log(answer.in_words(run))


def write_report(run: Run, file: Path | None = None, *, tsne: bool | None = None) -> Path:
    """Write a run as one HTML page, report.html in its folder if no file is given; returns its
    path."""
    from shoal.report.page import render_report

    target = file if file is not None else run.path / "report.html"
    make_folder(target.parent)
    with locked(run.path) if tsne or target.parent == run.path else nullcontext():
        write_text(target, render_report(run, tsne=tsne))
    return target


def answer_in_words(run: Run, n_uncertain: int | None = None) -> str:
    """Summarize a run: 'Found 23 categories (80 % interval 20–26): 14 known, 9 novel. 212 images
    are uncertain.'

    A known `n_uncertain` spares reading a row per image.
    """
    if n_uncertain is None:
        n_uncertain = sum(sure < UNSURE_BELOW for sure in column(run.assignments, "confidence"))
    categories = run.categories
    has_images = [row.size > 0 for row in categories if not row.is_novel]
    n_known = sum(has_images)
    n_novel = sum(row.size > 0 for row in categories if row.is_novel)
    known = f"{n_known} known"
    if not all(has_images):
        known = f"{n_known} of {len(has_images)} known"
    estimate = run.json("estimate") if run.has("estimate.json") else {}
    interval = estimate.get("interval")
    found = f"Found {count(n_known + n_novel, 'category')}"
    if interval:
        found += f" ({interval_in_words(interval, estimate.get('range'))})"
    sentences = [
        f"{found}: {known}, {n_novel} novel.",
        f"{count(n_uncertain, 'image')} {plural(n_uncertain, 'is')} uncertain.",
    ]
    if estimate.get("by_labels"):
        sentences.append(f"However, {against_range(estimate['by_labels'])}.")
    if interval and is_wide(interval):
        sentences.append("The labels say little about the number of categories.")
    if run.has("calibration.json") and not run.json("calibration")["is_calibrated"]:
        sentences.append(UNCHECKED)
    mixed = [shown(row.category) for row in categories if row.mixed_probability >= MIXED_FROM]
    if mixed:
        may = f"{count(len(mixed), 'category')} may hold another one"
        sentences.append(f"{may}: {first_few(mixed)}.")
    return " ".join(sentences)
