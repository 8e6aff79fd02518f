"""Sentences and facts about a run, and about its uncertainty."""

from collections import Counter

from shoal.arrays import digest_rows
from shoal.errors import (
    AVERAGE_LINKAGE,
    count,
    doubt_labels,
    duration,
    first_few,
    interval_in_words,
    is_wide,
    percent,
    plural,
    shown,
    span,
)
from shoal.review.actions import STATUSES
from shoal.review.reviewed_run import COUNTED_BY, ReviewedRun
from shoal.runs import MIXED_FROM, UNCERTAIN_BELOW, Run, column
from shoal.settings import Plain

# With fewer held-out labels the calibration of confidence is uncertain
FEW_LABELS = 20

UNCHECKED = (
    "Confidence could not be calibrated from the labels, so for unlabeled images it is at most "
    "0.95."
)


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
