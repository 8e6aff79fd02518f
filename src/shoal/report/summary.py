"""Sentences and facts about a run, and about its uncertainty."""

from collections import Counter

from shoal.checksums import digest_rows
from shoal.review.actions import STATUSES
from shoal.review.decisions import COUNTED_BY
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import UNCERTAIN_BELOW
from shoal.text import shown
from shoal.words import (
    AVERAGE_LINKAGE,
    count,
    doubt_labels,
    duration,
    interval_in_words,
    is_wide,
    percent,
    plural,
)

FEW_LABELS = 20
"""With fewer held-out labels the calibration of confidence is uncertain."""


def sentences(run: ReviewedRun) -> list[str]:
    """Return sentences about the result, its uncertainty, and how it was computed."""
    found = [
        _found(run),
        _reviewed(run),
        _uncertain(run),
        describe_n_clusters(run),
        _training(run),
    ]
    if run.has("shifts.json") and run.json("shifts").get("linkage_method") == "average":
        found.append(f"{AVERAGE_LINKAGE[0].upper()}{AVERAGE_LINKAGE[1:]}.")
    n_unreadable = run.provenance.get("n_unreadable")
    if n_unreadable:
        found.append(f"{count(n_unreadable, 'file')} could not be read: see skipped.csv.")
    return list(filter(None, found))


def _found(run: ReviewedRun) -> str:
    if not run.n_clusters:
        return "No category was found."
    categories = count(run.n_clusters, "category")
    return f"Found {categories}: {run.n_known:,} known, {run.n_novel:,} novel."


def _reviewed(run: ReviewedRun) -> str:
    """Return how many images were confirmed, moved, rejected and flagged."""
    if run.review is not None:
        n_by_status = Counter(run.column("status"))
        counts = [
            f"{n_by_status[status]:,} {status}" for status in STATUSES[1:] if n_by_status[status]
        ]
        return f"Reviewed: {', '.join(counts) or 'only names or categories were changed'}."
    if run.has("review.jsonl"):
        return "The review was made for another result; `shoal review` replays it on this one."
    return ""


def _uncertain(run: ReviewedRun) -> str:
    n = int(run.is_uncertain.sum())
    if n:
        limit = f"confidence below {UNCERTAIN_BELOW}, or no category"
        text = f"{count(n, 'image')} {plural(n, 'is')} uncertain ({limit})."
    else:
        text = f"Every image has a confidence of at least {UNCERTAIN_BELOW}."
    if not run.json("calibration")["is_calibrated"]:
        text += (
            " Confidence could not be calibrated from the labels, so for unlabeled images it is at "
            "most 0.95."
        )
    return text


def _training(run: ReviewedRun) -> str:
    """Return whether training was stopped early, and its held-out accuracy."""
    text = []
    stopped = run.provenance.get("stopped_early")
    if stopped:
        text.append(f"Training was stopped after {stopped['epochs']} of {stopped['of']} epochs.")
    if run.has("choice.json"):
        choice = run.json("choice")
        labels = count(int(choice["n_images"]), "label")
        accuracy = choice["accuracy"]
        trained = "training collapsed"
        if accuracy["trained"] is not None:
            test = "significant" if choice["is_significant"] else "not significant"
            trained = f"{percent(accuracy['trained'])} trained ({test})"
        accuracies = f"{percent(accuracy['frozen'])} frozen, {trained}"
        text.append(
            f"Held-out accuracy on {labels}: {accuracies}. The {choice['result']} result is used."
        )
    elif stopped and not run.has("model.json"):
        text.append("The frozen result is used.")
    return " ".join(text)


def describe_n_clusters(run: ReviewedRun) -> str:
    """Return how the number of categories was determined, with its 80 % interval."""
    estimate = run.json("estimate")
    k = estimate["n_clusters"]
    if estimate.get("is_given"):
        return f"The number of categories, {k}, was given."
    if estimate.get("rule") == COUNTED_BY:
        return f"The number of categories, {k}, is the number in the review."
    text = f"The number of categories was estimated as {k}."
    interval = estimate.get("interval")
    if interval:
        words = interval_in_words(interval, estimate.get("range"))
        text = (
            f"The number of categories was estimated as {k} ({words}), assuming that novel "
            "categories are as large as known ones."
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
            "Confidence could not be calibrated from the labels: it is the share of an image's "
            "neighbors in its category, for unlabeled images at most 0.95."
        )
    n_known = round(sum(calibration["labeled"]["n_images"]))
    n_novel = round(sum(calibration["novel"]["n_images"]))
    source = ""
    if calibration.get("is_from_frozen"):
        source = " of the frozen result (too few were held out from training)"
    few = ""
    if min(n_known, n_novel) < FEW_LABELS:
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
