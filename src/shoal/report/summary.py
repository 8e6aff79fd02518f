"""Sentences and facts about a run and its uncertainty, and suggestions for a curator: categories
that may be the same or mixtures of two, and given labels that look wrong."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from shoal.arrays import Floats, Ints, digest_rows
from shoal.errors import (
    NotInRun,
    count,
    duration,
    first_few,
    percent,
    plural,
    shown,
    span,
)
from shoal.review.actions import STATUSES
from shoal.review.reviewed_run import COUNTED_BY, ReviewedRun, current_names
from shoal.runs import MIXED_FROM, UNCERTAIN_BELOW, Category, Run, column
from shoal.settings import Plain

# With fewer held-out labels the calibration of confidence is uncertain
FEW_CHECKED = 20

UNCHECKED = (
    "Confidence could not be calibrated from the labels, so for unlabeled images it is at most "
    "0.95."
)

MAX_SPLITS = 12

# The separation of the two halves of a uniform distribution: 3.46 (on [-1, 1], their means are ±1/2
# and their variances 1/12); for a normal distribution it is 2.65. Two categories with a smaller
# separation look like halves of one.
ONE_GROUP = 2 * sqrt(3)

# Categories with fewer images are not compared
MIN_IMAGES = 3

# At least this many of the closest pairs are listed, even if they look distinct
MIN_PAIRS = 12

# Maximum number of images of a category that are compared; larger ones are sampled evenly
MOST_COMPARED = 10_000

# The columns of assignments.csv that show whether a label is suspicious
LABEL_COLUMNS = ("label_given", "category", "confidence", "nearest_known", "second_category")

# The name of a category, or of a part of one, that no person has named
NUMBERED = re.compile(r"novel-\d{3,}( \(\d+\))*")

# With fewer labeled images per known category, or fewer known categories, an estimate of K is
# uncertain
FEW_LABELS = 5
FEW_KNOWN = 8

# The note on a run whose labels chose average linkage
AVERAGE_LINKAGE = (
    "average linkage is used, because its accuracy on the labeled images is higher than that of "
    "Ward's linkage"
)


def interval_in_words(interval: Sequence[int], given_range: Sequence[int] | None = None) -> str:
    """Return the 80 % interval of an estimate, with the range that a user gave for it."""
    text = f"80 % interval {span(interval)}"
    if given_range:
        text += f", within the given range {span(given_range)}"
    return text


def is_wide(interval: Sequence[int]) -> bool:
    """Return whether the upper end of an interval is more than twice the lower one."""
    return max(interval) > 2 * min(interval)


def doubt_labels(n_labeled: int, n_known: int) -> str | None:
    """Return a note if K is estimated from few labels or few known categories, else None."""
    if n_labeled >= FEW_LABELS * n_known and (n_known == 0 or n_known >= FEW_KNOWN):
        return None
    few = f"{count(n_labeled, 'labeled image')} of {count(n_known, 'known category')}"
    return f"the number of categories is estimated from {few}; give --n-clusters or label more"


def count_uncertain(run: Run) -> int:
    return sum(confidence < UNCERTAIN_BELOW for confidence in column(run.assignments, "confidence"))


def summarize_run(run: Run) -> str:
    """Summarize a run: 'Found 23 categories (80 % interval 20–26): 14 known, 9 novel. 212 images
    are uncertain.'"""
    n_uncertain = count_uncertain(run)
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
    if interval and is_wide(interval):
        sentences.append("The labels barely constrain the number of categories.")
    if run.has("calibration.json") and not run.json("calibration")["is_calibrated"]:
        sentences.append(UNCHECKED)
    mixed = [shown(row.category) for row in categories if row.mixed_probability >= MIXED_FROM]
    if mixed:
        mixtures = count(len(mixed), "category")
        sentences.append(f"{mixtures} may be a mixture of two: {first_few(mixed)}.")
    return " ".join(sentences)


def sentences(run: ReviewedRun) -> list[str]:
    """Return sentences about the result, its uncertainty, and how it was computed."""
    found = [summarize_run(run), _reviewed(run), describe_n_clusters(run), _training(run)]
    if run.has("shifts.json") and run.json("shifts").get("linkage_method") == "average":
        found.append(f"{AVERAGE_LINKAGE[0].upper()}{AVERAGE_LINKAGE[1:]}.")
    n_unreadable = run.provenance.get("n_unreadable")
    if n_unreadable:
        found.append(f"{count(n_unreadable, 'file')} could not be read: see skipped.csv.")
    return list(filter(None, found))


def _reviewed(run: ReviewedRun) -> str:
    if run.review is not None:
        n_by_status = Counter(column(run.assignments, "status"))
        counts = [
            f"{n_by_status[status]:,} {status}" for status in STATUSES[1:] if n_by_status[status]
        ]
        return f"Reviewed: {', '.join(counts) or 'only names or categories were changed'}."
    if run.has("review.jsonl"):
        return "The review was made for another result; `shoal review` replays it on this one."
    return ""


def _training(run: ReviewedRun) -> str:
    """Return whether training was stopped early, and its held-out accuracy."""
    text = []
    stopped = run.provenance.get("stopped_early")
    if stopped:
        text.append(f"Training was stopped after {stopped['epochs']} of {stopped['of']} epochs.")
    if run.has("choice.json"):
        choice = run.json("choice")
        text.append(f"{describe_choice(choice)} The {choice['result']} result is used.")
    elif stopped and not run.has("model.json"):
        text.append("The frozen result is used.")
    return " ".join(text)


def describe_choice(choice: Plain) -> str:
    """Return the held-out accuracies of both results, from the content of choice.json."""
    labels = count(int(choice["n_images"]), "label")
    accuracy = choice["accuracy"]
    trained = "training collapsed"
    if accuracy["trained"] is not None:
        test = "significant" if choice["is_significant"] else "not significant"
        trained = f"{percent(accuracy['trained'])} trained ({test})"
    return f"Held-out accuracy on {labels}: {percent(accuracy['frozen'])} frozen, {trained}."


def describe_n_clusters(run: ReviewedRun) -> str:
    """Return how the number of categories was determined, and why not to trust an estimate."""
    estimate = run.json("estimate")
    k = estimate["n_clusters"]
    if estimate.get("is_given"):
        return f"The number of categories, {k}, was given."
    if estimate.get("rule") == COUNTED_BY:
        return f"The number of categories, {k}, is the number in the review."
    text = (
        f"The number of categories was estimated as {k}, assuming that novel categories are as "
        "large as known ones."
    )
    doubt = doubt_estimate(run)
    if doubt:
        text += f" {doubt[0].upper()}{doubt[1:]}."
    return text


def doubt_estimate(run: Run) -> str | None:
    """Return why not to trust an estimate of K: few labels or a wide interval; else None."""
    estimate = run.json("estimate")
    if estimate.get("is_given") or estimate.get("rule") == COUNTED_BY:
        return None
    labels = [label for label in column(run.assignments, "label_given") if label]
    doubts = [doubt_labels(len(labels), len(set(labels)))]
    interval = estimate.get("interval")
    if interval and is_wide(interval):
        doubts.append(f"the 80 % interval of the number of categories is {span(interval)}")
    return "; ".join(filter(None, doubts)) or None


def describe_confidence(run: ReviewedRun) -> str:
    """Return sentences about the meaning of calibrated confidence and the labels behind it."""
    calibration = run.json("calibration")
    n_known = round(sum(calibration["labeled"]["n_images"]))
    n_novel = round(sum(calibration["novel"]["n_images"]))
    source = ""
    if calibration.get("is_from_frozen"):
        source = " of the frozen result (too few were held out from training)"
    few = ""
    if min(n_known, n_novel) < FEW_CHECKED:
        few = " With so few labels the calibration is uncertain."
    return (
        "Of the images with confidence 0.9, about nine in ten should be correct. In a known "
        "category, an image is correct if it belongs to that class; in a novel category, "
        "confidence is the expected share of the category's images that belong to the same class "
        f"as the image. Confidence was calibrated on held-out labels{source}: "
        f"{count(n_known, 'image')} in known categories and {n_novel:,} in held-out ones.{few} "
        "If a category may be a mixture of two, images of the second have a lower confidence."
    )


def accuracy_note(run: ReviewedRun) -> str:
    """Return a title for the accuracy: on how many images and classes it was measured."""
    accuracy = run.json("accuracy")
    images = count(int(accuracy["n_images"]), "image")
    note = f"Accuracy on {images} of {count(accuracy['n_classes'], 'class')} with true labels"
    if accuracy.get("categories") not in (None, digest_rows(run.category_ids)):
        note += ", measured before the last review; run `shoal evaluate` to update it"
    return note


def facts(run: ReviewedRun) -> dict[str, str]:
    """Return facts about a run by name, such as the encoder, the device and the time."""
    provenance = run.provenance
    n_epochs = len(run.metrics)
    seconds = provenance.get("seconds")
    found = {
        "Encoder": provenance.get("encoder"),
        "Training": count(n_epochs, "epoch") if n_epochs else "none",
        "Seed": provenance["seed"],
        "Device": provenance["device"],
        "Time": None if seconds is None else duration(float(seconds)),
        "Started": str(provenance["started"])[:16].replace("T", " "),  # 2026-11-15 02:24
        "Images": provenance.get("root"),
        "Command": provenance["command"],
        "Shoal": provenance["packages"].get("shoal"),
        "Run folder": run.path.name,
    }
    return {name: shown(str(value)) for name, value in found.items() if value not in (None, "")}


def suggested_splits(run: ReviewedRun) -> list[tuple[Category, tuple[Ints, Ints]]]:
    """Return the categories that may be mixtures of two, most probable first, with the rows of the
    images that would stay and of those that would leave, most typical first."""
    is_apart = np.array(column(run.assignments, "is_apart"), dtype=bool)
    splits = []
    for category in run.categories:
        if category.category_id in run.members and category.mixed_probability >= MIXED_FROM:
            rows = run.members[category.category_id]
            groups = (rows[~is_apart[rows]], rows[is_apart[rows]])
            if all(map(len, groups)):  # else a review has separated them
                splits.append((category, groups))
    splits.sort(key=lambda split: (-split[0].mixed_probability, split[0].category))
    return splits[:MAX_SPLITS]


@dataclass(frozen=True)
class Merge:
    """Two categories, at least one of them novel or unnamed, that may be the same category."""

    novel: Category
    other: Category
    # Their distance over the standard deviation along the line between them
    separation: float
    # Share of the images of both whose second category is the other one
    second_choice: float

    @property
    def looks_like_one(self) -> bool:
        """Whether they are as close as two halves of one category."""
        return self.separation < ONE_GROUP


def suggested_merges(run: ReviewedRun) -> list[Merge]:
    """Return pairs of categories that look like one, and the closest other pairs.

    Uses the embeddings before the mean shift, which pulls the images of any group toward each
    other.
    """
    by_id = {category.category_id: category for category in run.categories}
    members = {number: rows for number, rows in run.members.items() if number in by_id}
    novel = {number for number, c in by_id.items() if may_be_part(c.category, is_novel=c.is_novel)}
    second = column(run.assignments, "second_category")
    merges = []
    for a, b, gap in close_pairs(run.vectors("embeddings"), members, novel, MIN_PAIRS):
        hits = [
            second[row] == by_id[other].category
            for number, other in ((a, b), (b, a))
            for row in members[number].tolist()
        ]
        merges.append(Merge(by_id[a], by_id[b], gap, float(np.mean(hits))))
    return merges


def may_be_part(name: str, *, is_novel: bool) -> bool:
    """Return whether a category may be part of another one: it is novel, or no person named it.

    A category with a confirmed image is known in the next run, but may still be half of one.
    """
    return is_novel or NUMBERED.fullmatch(name) is not None


def close_pairs(
    vectors: Floats,
    members: Mapping[int, Ints],
    novel: Collection[int],
    max_pairs: int,
    distinct: Collection[tuple[int, int]] = (),
) -> list[tuple[int, int, float]]:
    """Return pairs of categories with their separation, closest first; the first of a pair is in
    `novel`.

    All pairs that look like one category are returned; if these are fewer than `MIN_PAIRS`, the
    next closest pairs are added up to that number. In total there are at most `max_pairs`. Pairs
    in `distinct` (lower id first) that are closer than all omitted pairs are included but not
    counted.

    Parameters
    ----------
    vectors : (N, D) array
        The embeddings of all images.
    members : mapping
        The rows of each category.
    novel : collection of int
        Categories that may be part of another one.
    max_pairs : int
        Maximum number of pairs.
    distinct : collection of pairs
        Pairs that people marked as distinct.
    """
    large = {
        number: sampled(rows, MOST_COMPARED)
        for number, rows in members.items()
        if len(rows) >= MIN_IMAGES
    }
    means = {number: vectors[rows].mean(axis=0, dtype=np.float64) for number, rows in large.items()}
    pairs = []
    for a, b in _near_pairs(means, novel):
        gap = separation(vectors[large[a]].astype(np.float64), vectors[large[b]].astype(np.float64))
        if gap < float("inf"):
            pairs.append((a, b, gap))
    pairs.sort(key=lambda pair: pair[2])
    open_pairs = [pair for pair in pairs if (min(pair[:2]), max(pair[:2])) not in distinct]
    n_alike = sum(gap < ONE_GROUP for *_, gap in open_pairs)
    omitted = open_pairs[min(max_pairs, max(n_alike, MIN_PAIRS)) :]
    return pairs[: pairs.index(omitted[0])] if omitted else pairs


def sampled(rows: Ints, max_rows: int) -> Ints:
    """Return the rows, or an even sample of them in the same order."""
    if len(rows) <= max_rows:
        return rows
    return rows[np.linspace(0, len(rows) - 1, max_rows).astype(np.int64)]


def separation(a: Floats, b: Floats) -> float:
    """Return how well two groups of points, (n, D) and (m, D), are separated.

    This is Ashman's D, √2 |μ_a - μ_b| / √(σ_a² + σ_b²), on the line through both means. For each
    point the line is computed without it: otherwise few points in many dimensions would always look
    separated. 0 if the projected means coincide or are in the wrong order; infinite for different
    groups without variance.
    """
    middle = (a.mean(axis=0) + b.mean(axis=0)) / 2
    on_a = _projected(a - middle, b - middle)
    on_b = _projected(b - middle, a - middle)
    gap = -float(on_a.mean() + on_b.mean())
    if gap <= 0:
        return 0.0
    spread = sqrt(float(np.var(on_a, ddof=1) + np.var(on_b, ddof=1)))
    return sqrt(2) * gap / spread if spread > 0 else float("inf")


def _projected(group: Floats, other: Floats) -> Floats:
    """Return (n,) the position of each point on the line from the mean of the other points of its
    group to the mean of the other group."""
    n = len(group)
    means_without = (n * group.mean(axis=0) - group) / (n - 1)  # (n, D) leave-one-out
    lines = other.mean(axis=0) - means_without  # (n, D)
    lengths = np.maximum(np.linalg.norm(lines, axis=1), np.finfo(np.float64).tiny)
    return np.einsum("nd,nd->n", group, lines) / lengths


def expected_labels(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return (N,) the category that the neighbors of each labeled image suggest; empty for
    unlabeled images.

    A run puts labeled images into the categories of their labels, so its categories alone say
    nothing about a label. But if few of the neighbors are in that category, and another known
    category is nearer, the neighbors suggest the second category. `columns` are those of
    assignments.csv as written by the run.
    """
    expected = []
    rows = zip(*(columns[name] for name in LABEL_COLUMNS), strict=True)
    for label, category, confidence, nearest, second in rows:
        is_doubted = confidence < UNCERTAIN_BELOW and nearest not in ("", label)
        if not label:
            expected.append("")
        elif category == label and is_doubted and second:
            expected.append(second)
        else:
            expected.append(category)
    return expected


def suspicious_labels(run: ReviewedRun) -> list[tuple[int, str, float]]:
    """Return the undecided images whose label looks wrong, most certain first.

    Each is a row, the category that its neighbors suggest (empty for none), and the certainty: the
    confidence in that category or, for an image in the category of its label, 1 - confidence.
    """
    if not run.is_labeled.any():
        raise NotInRun("No suspicious labels: no image was labeled.")
    as_found = {name: column(run.assignments, name) for name in LABEL_COLUMNS}
    names: dict[str, str] = {}
    if run.review is not None:
        as_found = run.review.state.columns
        names = current_names(run.review.state)
    suspicious = []
    for row, (image, name) in enumerate(
        zip(run.assignments, expected_labels(as_found), strict=True)
    ):
        expected = names.get(name, name)
        if image.label_given not in ("", expected) and image.status == "predicted":
            certainty = float(np.nan_to_num(image.confidence))
            if image.label_given == image.category:
                certainty = 1 - certainty
            suspicious.append((row, expected, certainty))
    return sorted(suspicious, key=lambda label: (-label[2], label[0]))


def _near_pairs(means: Mapping[int, Floats], novel: Collection[int]) -> list[tuple[int, int]]:
    """Return each novel category with its three nearest others by their means, each pair once."""
    numbers = [*means]
    centers = np.array([*means.values()])  # (K, D)
    pairs: dict[frozenset[int], tuple[int, int]] = {}
    for number in numbers:
        if number in novel:
            distances = np.linalg.norm(centers - means[number], axis=1)  # (K,)
            distances[numbers.index(number)] = np.inf
            for at in np.argsort(distances, kind="stable")[: min(3, len(numbers) - 1)].tolist():
                pairs.setdefault(frozenset((number, numbers[at])), (number, numbers[at]))
    return list(pairs.values())
