"""The answers of a discovery, by the encoder as it comes and as it was trained, and how they become runs.

The first answer, without training, is kept inside the run as a run of its own while training goes on, to be looked at,
exported and assigned to like any run. In the end the answer that stands is the run, and the other is kept inside it.

N images, D columns.
"""

from collections.abc import Sequence
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
from shoal.discovery.named_categories import NamedCategories, name_categories, write_categories
from shoal.discovery.reporter import Reporter
from shoal.files import make_folder, write_text
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.registry import get_method
from shoal.runs import (
    ANSWERS,
    MIXED_FROM,
    UNSURE_BELOW,
    Run,
    RunView,
    column,
    locked,
    thumbnail_files,
)
from shoal.text import shown
from shoal.training.model import TaskShape
from shoal.words import count, first_few, likely

FROZEN, TRAINED = ANSWERS

UNCHECKED = f"too few labels to check confidence, so none is above {UNCHECKED_CONFIDENCE}"

IN_WORDS = {FROZEN: "the first answer, without training,", TRAINED: "the trained answer"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What was found with the encoder as it comes, or as it was trained."""

    name: str
    """'frozen' or 'trained'."""
    discovery: Discovery
    named: NamedCategories
    frozen_weight: float = 0.0
    """Of a trained answer: the weight of the frozen encoder's embeddings beside the trained ones."""
    n_tail_blocks: int | None = None
    """Of a trained answer: how many blocks were trained; None: what the encoder's catalog entry says."""
    trained_in: Path | None = None
    """Of a trained answer: the folder with its networks and metrics."""
    shape: TaskShape | None = None
    """Of a trained answer: the shape of the task that its model was made for."""

    def in_words(self, run: Run) -> str:
        """The same as `answer_in_words` of the run that holds it, whose rows need not be read for that."""
        return answer_in_words(run, int((self.named.members.confidence < UNSURE_BELOW).sum()))

    def write_training(self, run: Run) -> None:
        """Give a run the networks and the metrics of this answer."""
        assert self.trained_in is not None
        trained = Run(self.trained_in)
        trained.keep_model(run)
        run.write_json("model", {**self._about_model(), **self._about_classifier()})
        if trained.path != run.path:
            trained.share("metrics.jsonl", run)

    def _about_model(self) -> dict[str, Any]:
        """What has to be known to build it again."""
        return {
            "n_tail_blocks": self.n_tail_blocks,
            "frozen_weight": self.frozen_weight,
            "shape": None if self.shape is None else asdict(self.shape),
        }

    def _about_classifier(self) -> dict[str, Any]:
        """The category of most images of each output of the model's classifier, -1 without any; where it has one."""
        predicted = self.discovery.predicted
        if predicted is None:
            return {}
        own = self.named.categories
        is_free = self.named.given == UNLABELED
        # A labeled image may be in another category than the one predicted, so it counts where there is no other.
        counts = is_free | ~np.isin(predicted, predicted[is_free])
        pairs, sizes = np.unique(np.stack([predicted, own])[:, counts], axis=1, return_counts=True)
        pairs = pairs[
            :, np.argsort(sizes, kind="stable")
        ]  # the largest of each output is written last
        categories = np.full(int(predicted.max()) + 1, UNLABELED)
        categories[pairs[0]] = np.asarray(self.named.ids)[pairs[1]]
        return {"classifier": categories.tolist()}

    def write(self, run: Run, settings: DiscoverySettings) -> None:
        """Write tables and arrays."""
        shift = settings.shift
        n_neighbors = shift.n_neighbors
        alpha = shift.alpha
        write_categories(run, self.named, self.discovery, n_neighbors=n_neighbors, alpha=alpha)


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
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    otherwise: Calibration | None = None,
    frozen: Tensor | None = None,
) -> Answer:
    """Turn clusters into named categories.

    `unseen` are the labeled images whose labels training did not see, in the discovery that confidence is
    `calibrated_on`: this one if not given. Where they are too few, confidence is calibrated as `otherwise`. `frozen`
    (N, C) are the embeddings of the frozen encoder, where the discovery has others.
    """
    about = (collection.names, collection.labels, collection.classes)
    n_neighbors = settings.shift.n_neighbors
    judged: dict[str, Any] = {
        "unseen": unseen,
        "calibrated_on": calibrated_on,
        "otherwise": otherwise,
        "frozen": frozen,
    }
    named = name_categories(
        discovery, *about, n_neighbors=n_neighbors, earlier=collection.earlier, **judged
    )
    return Answer(name=name, discovery=discovery, named=named)


def keep_answer(
    run: Run, answer: Answer, settings: DiscoverySettings, folder: Path | None = None, **more: Any
) -> Run:
    """Write an answer as a finished run of its own with its report, inside the run whose thumbnails it shares.

    It goes to `folder`, the one of its name if not given; `more` is noted in its provenance.json.
    """
    other = Run.create(folder or run.path / answer.name, force=True)
    told = replace(settings, train=answer.name == TRAINED)
    origin = run.provenance
    about = {
        name: origin[name]
        for name in ("root", "folders", "encoder", "fingerprint")
        if name in origin
    }
    other.start(
        told, seed=settings.seed, device=origin["device"], command=origin["command"], **about
    )
    answer.write(other, settings)
    if answer.name == TRAINED:
        answer.write_training(other)
    for part in (*(file.name for file in thumbnail_files(run.path)), "skipped.csv"):
        if run.has(part):
            run.share(part, other)
    given = answer.named.given
    other.finish(answer=answer.name, n_images=len(given), n_labeled=int((given >= 0).sum()), **more)
    write_report(other)
    return other


def write_answers(
    run: Run, answer: Answer, other: Answer | None, settings: DiscoverySettings, reporter: Reporter
) -> None:
    """Write the answer that stands, and see to it that the other one, where there is one, is kept beside it.

    A run that was stopped early and goes on has an answer already; what is not written again of it is removed.
    """
    run.drop("accuracy.json", "map.npz", "model.safetensors", "model.json", "report.html")
    old = Run(run.path / TRAINED)
    if old.has("provenance.json") and (other is None or other.name != TRAINED):
        old.abandon()
    answer.write(run, settings)
    if answer.name == TRAINED:
        answer.write_training(run)
    elif settings.is_trained:
        Run(run.path / FROZEN).abandon()  # the run itself is the first answer now
    if other is not None:
        if other.name == TRAINED:
            keep_answer(run, other, settings)
        reporter.say(f"{IN_WORDS[other.name]} is kept in {run.path / other.name}")
    run.log(answer.in_words(run))


def write_report(run: Run, file: Path | None = None, *, tsne: bool | None = None) -> Path:
    """Write a run as one HTML page, report.html in its folder if no file is given; returns its path."""
    from shoal.report.page import render_report

    target = file if file is not None else run.path / "report.html"
    make_folder(target.parent)
    with locked(run.path) if tsne or target.parent == run.path else nullcontext():
        write_text(target, render_report(run, tsne=tsne))
    return target


def answer_in_words(run: RunView, n_unsure: int | None = None) -> str:
    """The answer of a run: '14 known categories found, 9 likely new, 212 images unsure', and how sure K is.

    To know `n_unsure` already spares reading a row per image.
    """
    if n_unsure is None:
        n_unsure = sum(sure < UNSURE_BELOW for sure in column(run.assignments, "confidence"))
    categories = run.categories
    known = [row.size for row in categories if not row.is_novel]
    novel = [row.size for row in categories if row.is_novel]
    words = _counts(known, novel, n_unsure)
    estimate = run.json("estimate") if run.has("estimate.json") else {}
    interval = estimate.get("interval")
    asked = estimate.get("range"), estimate.get("by_labels")
    sure = [likely(estimate["n_clusters"], interval, *asked)] if interval else []
    if run.has("calibration.json") and not run.json("calibration")["is_calibrated"]:
        sure.append(UNCHECKED)
    mixed = [shown(row.category) for row in run.categories if row.mixed_probability >= MIXED_FROM]
    if mixed:
        sure.append(f"{count(len(mixed), 'category')} may hold another one: {first_few(mixed)}")
    return "; ".join([words, *sure])


def _counts(known_sizes: Sequence[int], novel_sizes: Sequence[int], n_unsure: int) -> str:
    """How many categories have images, of those that were known and of new ones, and how many images are unsure."""
    n_known, n_novel = (sum(size > 0 for size in sizes) for sizes in (known_sizes, novel_sizes))
    known = f"{count(n_known, 'known category')} found"
    if n_known < len(known_sizes):
        known += f" (of {len(known_sizes)})"
    return f"{known}, {n_novel} likely new, {count(n_unsure, 'image')} unsure"
