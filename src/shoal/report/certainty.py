"""Sentences about the uncertainty of the number of categories and of single images."""

from shoal.review.decisions import COUNTED_BY
from shoal.review.reviewed_run import ReviewedRun
from shoal.words import count, doubt_labels, is_wide, span

FEW_LABELS = 20
"""With fewer held-out labels the calibration of confidence is uncertain."""


def describe_n_clusters(run: ReviewedRun) -> str:
    """Return how the number of categories was determined, with its 80 % interval."""
    estimate = run.json("estimate")
    k = estimate["n_clusters"]
    if estimate.get("is_given"):
        return f"The number of categories, {k}, was given."
    if estimate.get("rule") == COUNTED_BY:
        return f"The number of categories, {k}, is the number in the review."
    text = f"The number of categories was estimated as {k}"
    if estimate.get("range"):
        text += f", within the given range {span(estimate['range'])}"
    text += "."
    interval = estimate.get("interval")
    if interval:
        text += (
            f" Its 80 % interval is {span(interval)}, assuming that novel categories are as large "
            "as known ones."
        )
        if is_wide(interval):
            text += " The labels barely constrain it."
    n_known = len({*run.column("label_given")} - {""})
    doubt = doubt_labels(int(run.is_labeled.sum()), n_known)
    if doubt:
        text += f" {doubt[0].upper()}{doubt[1:]}."
    return text


def describe_confidence(run: ReviewedRun) -> str:
    """Return sentences about the meaning of confidence and the labels that calibrated it."""
    calibration = run.json("calibration")
    if not calibration["is_calibrated"]:
        return (
            "There are too few labels to calibrate confidence: it is the share of an image's "
            "neighbors in its category, at most 0.95."
        )
    n_known = round(sum(calibration["labeled"]["n_images"]))
    n_novel = round(sum(calibration["novel"]["n_images"]))
    source = ""
    if calibration.get("is_from_frozen"):
        source = " of the frozen result, because too few labels were held out from training"
    few = ""
    if min(n_known, n_novel) < FEW_LABELS:
        few = " With so few labels the calibration is uncertain."
    return (
        "Of the images with confidence 0.9, about nine in ten should be correct. In a known "
        "category, an image is correct if it belongs to that class; in a novel category, "
        "confidence is the expected share of the category's images that belong to the same class "
        f"as the image. Confidence was calibrated on held-out labels{source}: "
        f"{count(n_known, 'image')} in known categories and {n_novel:,} in hidden ones.{few} "
        "If a category may be two, the images of the second one have a lower confidence."
    )
