"""How certain a run is, in words: of the number of categories, and of the category of each
image.
"""

from typing import Any

from shoal.review.decisions import COUNTED_BY
from shoal.review.reviewed_run import ReviewedRun
from shoal.words import against_range, count, doubt_labels, is_wide, span

CLOSE_TO_BEST = 0.01
"""Numbers of clusters whose labeled accuracy is this close to the best fit nearly as well."""

FEW_LABELS = 20
"""Held-out labels below which they say little of confidence."""


def how_sure(run: ReviewedRun) -> str:
    """Say how many clusters there are, who chose that number, and how certain it is."""
    estimate = run.json("estimate")
    k = estimate["n_clusters"]
    if estimate.get("is_given"):
        return f"The number of categories, {k}, was given."
    if estimate.get("rule") == COUNTED_BY:
        return f"The number of categories, {k}, is what the review left."
    sentence = f"The number of categories, {k}, was estimated"
    if estimate.get("range"):
        sentence += f", within {span(estimate['range'])} as given"
    sentences = [f"{sentence}."]
    interval = estimate.get("interval")
    if interval:
        sentences.append(
            f"The 80 % interval is {span(interval)}, if novel categories are as large as known "
            "ones."
        )
        if is_wide(interval):
            sentences.append("The labels say little about it.")
    if estimate.get("by_labels"):
        sentences.append(f"However, {against_range(estimate['by_labels'])}.")
    labels = [label for label in run.column("label_given") if label]
    doubt = doubt_labels(len(labels), len(set(labels)))
    if doubt:
        sentences.append(f"{doubt[0].upper()}{doubt[1:]}.")
    return " ".join(sentences)


def numbers_near_best(estimate: dict[str, Any]) -> list[int]:
    """Numbers of clusters that fit the labeled images within a point of the best.

    None without a curve.
    """
    curve = estimate.get("curve")
    if not curve or not curve["accuracy"]:
        return []
    least = max(curve["accuracy"]) - CLOSE_TO_BEST
    pairs = zip(curve["n_clusters"], curve["accuracy"], strict=True)
    return [n for n, accuracy in pairs if accuracy >= least]


def confidence_words(run: ReviewedRun) -> str:
    """Say what confidence means, and how many held-out labels it was checked with."""
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        return (
            "There are too few labels to check confidence: it is the share of an image's nearest "
            "images in its category, at most 0.95."
        )
    n_known = round(sum(calibration["labeled"]["n_images"]))
    n_novel = round(sum(calibration["novel"]["n_images"]))
    on = ""
    if calibration.get("is_of_first"):
        on = ", on the frozen result (too few labels were held out from training)"
    few = "; so few say little" if min(n_known, n_novel) < FEW_LABELS else ""
    return (
        "Of images at confidence 0.9, about nine in ten should be right: in a known category, of "
        "its class; in a novel one, that share of the category is of one class with the image. "
        f"Checked with held-out labels{on}, {count(n_known, 'image')} in known categories and "
        f"{n_novel:,} in what would be novel without them{few}. Images in the part of a category "
        "that may be another one are given less."
    )
