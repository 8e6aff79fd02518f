"""The answers of a discovery, and how one becomes a run: categories get names, images a row each, all of it is written.

The first answer, without training, is kept inside the run as a run of its own while training goes on, to be looked at,
exported and assigned to like any run. In the end the answer that stands is the run, and the other is kept inside it.

N images, D columns, K categories of which the first C are known.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Floats, Ints
from shoal.clustering.calibration import Calibration, calibrate
from shoal.clustering.categories import NONE, Membership, describe_members, number_clusters, other_neighbors
from shoal.clustering.neighbors import Neighbors
from shoal.data.collection import Collection, Earlier
from shoal.discovery.answer_words import UNCHECKED, counts_in_words
from shoal.discovery.kept import name_anew, name_as_before
from shoal.discovery.reviewed_clusters import go_on, reviewed_number
from shoal.discovery.settings import DiscoverySettings
from shoal.files import make_folder, write_text
from shoal.methods.clusters import Discovery, Representation, shift_and_cut
from shoal.methods.registry import get_method
from shoal.runs import ANSWERS, UNSURE_BELOW, Assignment, Category, Run, locked
from shoal.training.model import TaskShape
from shoal.words import likely

FROZEN, TRAINED = ANSWERS
IN_WORDS = {FROZEN: "the first answer, without training,", TRAINED: "the trained answer"}

N_EXEMPLARS = 5
"""Images named as typical of a category."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Found:
    """The categories of a collection."""

    names: Sequence[str]
    """(N,) the images."""
    given: Ints
    """(N,) the labels they came with, positions in `classes`, -1 for unlabeled."""
    categories: Ints
    """(N,) the category each was put in, positions in `classes`."""
    classes: Sequence[str]
    """(K,) names, the known categories first."""
    n_known: int
    members: Membership
    ids: Sequence[int]
    """(K,) the id of each category; its position, unless a review has made and ended some."""
    calibration: Calibration | None = None
    """What the confidence of the members rests on."""

    @property
    def is_unsure(self) -> Bools:
        """(N,) which images are more likely wrong than right."""
        mask: Bools = self.members.confidence < UNSURE_BELOW
        return mask

    def in_words(self) -> str:
        """The answer: '14 known categories found, 9 likely new, 212 images unsure'."""
        sizes = np.bincount(self.categories, minlength=len(self.classes)).tolist()
        return counts_in_words(sizes[: self.n_known], sizes[self.n_known :], int(self.is_unsure.sum()))


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What was found with the encoder as it comes, or as it was trained."""

    name: str
    """'frozen' or 'trained'."""
    discovery: Discovery
    found: Found
    counted_on: Floats | None = None
    """(N, D) the embeddings that K was estimated on, where they are others."""
    frozen_weight: float = 0.0
    """Of a trained answer: the weight of the frozen encoder's embeddings beside the trained ones."""
    n_tail_blocks: int | None = None
    """Of a trained answer: how many blocks were trained; None: what the encoder's catalog entry says."""
    trained_in: Path | None = None
    """Of a trained answer: the folder with its networks and metrics."""
    shape: TaskShape | None = None
    """Of a trained answer: the shape of the task that its model was made for."""

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
        """The category of each output of the model's classifier, -1 for one without images; where it has one."""
        predicted = self.discovery.predicted
        if predicted is None:
            return {}
        outputs, first = np.unique(predicted, return_index=True)
        categories = np.full(int(outputs.max()) + 1, UNLABELED)
        categories[outputs] = np.asarray(self.found.ids)[self.found.categories[first]]
        return {"classifier": categories.tolist()}

    def in_words(self) -> str:
        """What was found, and how sure the number of categories is where it was estimated."""
        words, estimate, calibration = [self.found.in_words()], self.discovery.estimate, self.found.calibration
        if estimate is not None:
            words.append(likely(estimate.n_clusters, estimate.interval, estimate.range))
        if calibration is not None and calibration.label_rate is None:
            words.append(UNCHECKED)
        return "; ".join(words)

    def write(self, run: Run, settings: DiscoverySettings, repeats: Sequence[int] = ()) -> None:
        """Write tables and arrays; `repeats` are what repetitions of the estimate of K gave."""
        shift = settings.shift
        n_neighbors, alpha = shift.n_neighbors, shift.alpha
        write_found(run, self.found, self.discovery, n_neighbors=n_neighbors, alpha=alpha, repeats=repeats)


def cluster(
    learned: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Put images into clusters as the method does, with every label there is."""
    return get_method(settings.method).cluster(
        learned,
        labels,
        settings.of_method,
        n_clusters=settings.n_clusters or n_clusters,
        device=learned.embeddings.device,
    )


def cluster_frozen(
    frozen: Representation, labels: Ints, settings: DiscoverySettings, n_clusters: int | None = None
) -> Discovery:
    """Put images into clusters by the encoder as it comes: in one way, whatever method will train it."""
    if not get_method(settings.method).trains:
        return cluster(frozen, labels, settings, n_clusters)
    device, inference = frozen.embeddings.device, settings.of_method.inference
    how: dict[str, Any] = {"n_clusters": settings.n_clusters or n_clusters, "seed": settings.seed, "device": device}
    return shift_and_cut(frozen, labels, inference, **how)


def answer_frozen(frozen: Representation, collection: Collection, settings: DiscoverySettings) -> Answer:
    """The answer by the encoder as it comes; after a review it goes on from the categories that people left."""
    number = reviewed_number(collection, settings)
    found = cluster_frozen(frozen, collection.labels, settings, number)
    if number is not None:
        found, collection = go_on(found, frozen.embeddings, collection)
    return make_answer(FROZEN, found, collection, settings)


def make_answer(
    name: str,
    discovery: Discovery,
    collection: Collection,
    settings: DiscoverySettings,
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    otherwise: Calibration | None = None,
) -> Answer:
    """Turn clusters into named categories.

    `unseen` are the labeled images whose labels training did not see, in the discovery that confidence is
    `calibrated_on`: this one if not given. Where they are too few, confidence is calibrated as `otherwise`.
    """
    about, n_neighbors = (collection.names, collection.labels, collection.classes), settings.shift.n_neighbors
    judged: dict[str, Any] = {"unseen": unseen, "calibrated_on": calibrated_on, "otherwise": otherwise}
    found = name_categories(discovery, *about, n_neighbors=n_neighbors, earlier=collection.earlier, **judged)
    return Answer(name=name, discovery=discovery, found=found)


def name_categories(
    discovery: Discovery,
    names: Sequence[str],
    given: Ints,
    classes: Sequence[str],
    *,
    n_neighbors: int,
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    otherwise: Calibration | None = None,
    earlier: Earlier | None = None,
) -> Found:
    """Turn clusters into categories: known ones keep their class's place, novel ones follow by falling size.

    After a review of an `earlier` run, categories keep their ids and names, and images stay out of categories they were
    thrown out of.

    Confidence is calibrated by the labels given; where something was trained, by those it has not seen, `unseen`. It is
    calibrated on clusters that no label has a part in, those without must-links, of this discovery or another one.
    Where they are too few, the calibration is that of another answer, `otherwise`.
    """
    categories, n_novel = number_clusters(discovery.clusters, given, len(classes), discovery.embeddings)
    n_known = len(classes)
    points, lists = near = _neighbors(discovery, n_neighbors)
    named = name_anew(categories, classes, n_novel)
    if earlier is not None:
        named = name_as_before(categories, classes, names, points, earlier)
    categories, everyone, n_novel = named.categories, named.names, len(named.names) - n_known
    members = describe_members(points, categories, len(everyone), n_known, n_neighbors, lists)
    if calibrated_on is not None:
        near = _neighbors(calibrated_on, n_neighbors)
    calibration = _calibrate(calibrated_on or discovery, given, n_known, n_neighbors, unseen, *near)
    if calibration.label_rate is None and otherwise is not None and otherwise.label_rate is not None:
        calibration = replace(otherwise, is_of_first=True)
    calibration = calibration.for_novel(n_novel)
    confidence = calibration.confidence(members.confidence, categories, given != UNLABELED)
    return Found(
        names=names,
        given=given,
        categories=categories,
        classes=everyone,
        ids=named.ids,
        n_known=n_known,
        members=replace(members, confidence=confidence),
        calibration=calibration,
    )


def _calibrate(
    discovery: Discovery,
    given: Ints,
    n_known: int,
    n_neighbors: int,
    unseen: Ints | None,
    points: Tensor,
    lists: Neighbors,
) -> Calibration:
    """How sure the share of neighbors in the same cluster makes, by clusters that no label has a part in."""
    clusters = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    categories, n_novel = number_clusters(clusters, given, n_known, discovery.embeddings)
    n_categories = n_known + n_novel
    share = describe_members(points, categories, n_categories, n_known, n_neighbors, lists).confidence
    sizes = {"n_categories": n_categories, "n_known": n_known}
    near = lists.indices.cpu().numpy()
    return calibrate(categories, given, share, near, discovery.embeddings, **sizes, unseen=unseen)


def _neighbors(discovery: Discovery, n_neighbors: int) -> tuple[Tensor, Neighbors]:
    points, lists = torch.from_numpy(np.ascontiguousarray(discovery.embeddings)), discovery.neighbors
    if lists is None:
        return points, other_neighbors(points, n_neighbors)
    return points, Neighbors(lists.indices.cpu(), lists.similarities.cpu())


def keep_answer(run: Run, answer: Answer, settings: DiscoverySettings, place: Path | None = None, **more: Any) -> Run:
    """Write an answer as a finished run of its own with its report, inside the run whose thumbnails it shares.

    It goes to `place`, the folder of its name if not given; `more` is noted in its provenance.json.
    """
    other = Run.create(place or run.path / answer.name, force=True)
    told, origin = replace(settings, train=answer.name == TRAINED), run.provenance
    about = {name: origin[name] for name in ("root", "folders", "encoder", "fingerprint") if name in origin}
    other.start(told, seed=settings.seed, device=origin["device"], command=origin["command"], **about)
    answer.write(other, settings)
    if answer.name == TRAINED:
        answer.write_training(other)
    for part in ("thumbnails.zip", "skipped.csv"):
        if run.has(part):
            run.share(part, other)
    given = answer.found.given
    other.finish(answer=answer.name, n_images=len(given), n_labeled=int((given >= 0).sum()), **more)
    write_report(other)
    return other


def write_found(
    run: Run, found: Found, discovery: Discovery, *, n_neighbors: int, alpha: float, repeats: Sequence[int] = ()
) -> None:
    """Write tables, arrays, the estimate of K (with what its repetitions gave) and the shifts."""
    run.write_assignments(assignment_rows(found))
    run.write_categories(category_rows(found))
    run.write_array("embeddings", discovery.embeddings)
    for name, array in (("shifted", discovery.shifted), ("tree", discovery.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_json("estimate", _estimate(discovery, repeats))
    if found.calibration is not None:
        run.write_json("calibration", found.calibration.to_dict())
    if discovery.accuracies:
        accuracies = [None if value != value else value for value in discovery.accuracies]
        shifts = {"accuracies": accuracies, "chosen": discovery.n_shifts, "n_neighbors": n_neighbors, "alpha": alpha}
        run.write_json("shifts", shifts)


def _estimate(discovery: Discovery, repeats: Sequence[int]) -> dict[str, object]:
    found, curve = discovery.estimate, None
    if found is not None:
        curve = {"n_clusters": found.curve.n_clusters.tolist(), "accuracy": found.curve.accuracy.tolist()}
    return {
        "n_clusters": discovery.n_clusters,
        "rule": found.rule if found is not None else discovery.counted_by or "given",
        "is_given": found is None and not discovery.counted_by,
        "interval": list(found.interval) if found is not None else None,
        "range": list(found.range) if found is not None and found.range else None,
        "curve": curve,
        "stability": {"n_clusters": list(repeats)} if repeats else None,
    }


def write_report(run: Run, file: Path | None = None, *, tsne: bool | None = None) -> Path:
    """Write a run as one HTML page, report.html in its folder if no file is given; returns its path."""
    from shoal.report.page import render_report

    target = file if file is not None else run.path / "report.html"
    make_folder(target.parent)
    with locked(run.path) if tsne or target.parent == run.path else nullcontext():
        write_text(target, render_report(run, tsne=tsne))
    return target


def assignment_rows(found: Found) -> list[Assignment]:
    """A row per image, in their order."""
    members = found.members
    return [
        Assignment(
            path=name,
            label_given=_name(found, int(found.given[i])),
            category_id=found.ids[found.categories[i]],
            category=found.classes[found.categories[i]],
            is_novel=bool(found.categories[i] >= found.n_known),
            confidence=float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=_name(found, int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=_name(found, int(members.second[i])),
        )
        for i, name in enumerate(found.names)
    ]


def category_rows(found: Found) -> list[Category]:
    """A row per category, known ones first, even those that no image was put in."""
    return [_category_row(found, category) for category in range(len(found.classes))]


def _category_row(found: Found, category: int) -> Category:
    rows = np.flatnonzero(found.categories == category)
    members = found.members
    typical = sorted(rows.tolist(), key=lambda row: (-members.typicality[row], found.names[row]))
    nearest, similarity = _nearest_known(members, rows, category, found.n_known)
    return Category(
        category_id=found.ids[category],
        category=found.classes[category],
        is_novel=category >= found.n_known,
        size=len(rows),
        n_labeled=int((found.given[rows] != UNLABELED).sum()),
        confidence=_mean(members.confidence[rows]) if len(rows) else 0.0,
        nearest_known=_name(found, nearest),
        nearest_known_similarity=similarity,
        exemplars=tuple(found.names[row] for row in typical[:N_EXEMPLARS]),
    )


def _nearest_known(members: Membership, rows: Ints, category: int, n_known: int) -> tuple[int, float]:
    """The known category nearest to most of a novel category's images; for a known one there is nothing to say."""
    near = members.nearest_known[rows]
    if category < n_known or not len(rows) or (near == NONE).all():
        return NONE, float("nan")
    chosen = int(np.bincount(near[near != NONE], minlength=1).argmax())
    return chosen, _mean(members.nearest_known_similarity[rows[near == chosen]])


def _mean(values: Floats) -> float:
    """The mean, of a sum that is rounded once: numpy's depends on the order of images in its last bits."""
    return math.fsum(values) / len(values)


def _name(found: Found, category: int) -> str:
    return "" if category == NONE else found.classes[category]
