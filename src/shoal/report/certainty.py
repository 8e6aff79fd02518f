"""How sure a run is, in words: of the number of categories, and of the category of each image."""

from typing import Any

from shoal.report.snapshot import NotInRun, Snapshot
from shoal.review.decisions import COUNTED_BY
from shoal.words import against_range, count, doubt_labels, is_wide, plural, span

CLOSE_TO_BEST = 0.01
"""Numbers of clusters whose labeled accuracy is this close to the best are said to fit nearly as well."""

FEW_LABELS = 20
"""Labels held back below which they say little of confidence."""


def how_sure(run: Snapshot) -> str:
    """Say how many clusters there are, who chose that number, and how sure it is; empty where nothing was kept."""
    try:
        estimate = run.part("estimate", "")
    except NotInRun:
        return ""
    k = estimate.get("n_clusters", run.n_clusters)
    if estimate.get("is_given"):
        return f"The number of categories, {k}, was given."
    if estimate.get("rule") == COUNTED_BY:
        return f"The number of categories, {k}, is what the review left."
    asked = estimate.get("range")
    said = f"The number of categories, {k}, was estimated{f', within the {span(asked)} that were given' if asked else ''}."
    labels = [label for label in run.column("label_given") if label]
    doubt = doubt_labels(len(labels), len(set(labels)))
    few = f"{doubt[0].upper()}{doubt[1:]}." if doubt else ""
    against = estimate.get("by_labels")
    outside = f"But {against_range(against)}." if against else ""
    return " ".join(filter(None, (said, _likely(estimate), outside, few, _near_best(estimate))))


def _likely(estimate: dict[str, Any]) -> str:
    """Say the range in which the number lies with a chance of 80 %, and where that says little, so."""
    interval = estimate.get("interval")
    if not interval:
        return ""
    likely = f"{span(interval)} {plural(max(interval), 'is')} likely"
    said = f"{likely}, with a chance of 80 % if new ones are as large as known"
    return f"{said}: the labels hardly say how many." if is_wide(interval) else f"{said}."


def _near_best(estimate: dict[str, Any]) -> str:
    """Say which numbers fit as well; beside an interval that would sound surer than it is: few labels fit few numbers."""
    near = numbers_near_best(estimate)
    if estimate.get("interval") or not near:
        return ""
    n_tried = len(estimate["curve"]["n_clusters"])
    which = f"the number {near[0]:,} fits" if len(near) == 1 else f"{span(near)} fit"
    said = f"Of {n_tried} numbers tried, {which} the labeled images within a point of the best."
    if not min(near) <= estimate.get("n_clusters", near[0]) <= max(near):
        said += " The estimate is not among them, because it also weighs unlabeled images."
    return said


def numbers_near_best(estimate: dict[str, Any]) -> list[int]:
    """The numbers of clusters that fit the labeled images within a point of the best; none where there is no curve."""
    curve = estimate.get("curve") or {}
    numbers = curve.get("n_clusters") or []
    accuracies = curve.get("accuracy") or []
    if not numbers or len(numbers) != len(accuracies):
        return []
    best = max(accuracies)
    return [
        n
        for n, accuracy in zip(numbers, accuracies, strict=True)
        if accuracy >= best - CLOSE_TO_BEST
    ]


def confidence_words(run: Snapshot) -> str:
    """Say what confidence means, and what it rests on; empty where nothing was kept."""
    if not run.has("calibration.json"):
        return ""
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        return (
            "There are too few labels to check confidence: it is the share of an image's nearest images in its "
            "category, at most 0.95."
        )
    n_known, n_novel = (round(sum(calibration[name]["n_images"])) for name in ("labeled", "novel"))
    on = (
        ", on the answer without training (too few were kept from training)"
        if calibration.get("is_of_first")
        else ""
    )
    few = "; so few say little" if min(n_known, n_novel) < FEW_LABELS else ""
    return (
        "Of images at confidence 0.9, about nine in ten should be right: in a known category, of its class; in a novel "
        f"one, that share of the category is of one class with the image. Checked with labels held back{on}, "
        f"{count(n_known, 'image')} in known categories and {n_novel:,} in what would be novel without "
        f"them{few}. Images in the part of a category that may be "
        "another one are given less."
    )
