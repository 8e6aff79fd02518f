"""A finished run as plain facts for a script: what `shoal discover --json` prints."""

from typing import Any

from shoal.discovery.answers import answer_in_words
from shoal.report.certainty import numbers_near_best
from shoal.report.suggested_splits import suggested_splits
from shoal.report.suggestions import suggested_merges
from shoal.review.decisions import COUNTED_BY
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import ANSWERS, UNSURE_BELOW, Run, column, table_files
from shoal.words import against_range, doubt_labels, is_wide, span

FILES = ("categories.csv", "embeddings.npy", "tree.npy", "skipped.csv", "report.html")
"""The files that are named beside the table of images, where a run has them."""


def collect_facts(run: Run) -> dict[str, Any]:
    """The answer in words and numbers, how sure it is, how it was made, and where its files are."""
    rows = run.assignments
    about = run.provenance
    best = [row for row in run.metrics if row.get("is_best")]
    n_labeled = sum(map(bool, column(rows, "label_given")))
    others = [run.path / name for name in ANSWERS if Run(run.path / name).is_finished]
    names = (*(file.name for file in table_files(run.path)), *FILES)
    return {
        "run": str(run.path),
        "answer": answer_in_words(run),
        "n_images": len(rows),
        "n_labeled": n_labeled,
        "n_unlabeled": len(rows) - n_labeled,
        "n_unreadable": len(run.skipped),
        "n_unsure": int(sum(sure < UNSURE_BELOW for sure in column(rows, "confidence"))),
        "n_clusters": run.n_clusters,
        "n_known": run.n_known,
        "n_novel": run.n_novel,
        "known_without_images": [row.category for row in run.categories if not row.size],
        "estimate": _estimate(run),
        "linkage": linkage_method_of(run),
        "confidence": _confidence(run),
        "suggested_merges": _merges(run),
        "suggested_splits": _splits(run),
        "validation_accuracy": best[-1]["validation_accuracy"] if best else None,
        "changes": _changes(run),
        "choice": run.json("choice") if run.has("choice.json") else None,
        "other_answer": str(others[0]) if others else None,
        "stopped_early": about.get("stopped_early"),
        "encoder_sees": about.get("encoder_sees"),
        "seconds": about.get("seconds"),
        **{name: about.get(name) for name in ("started", "finished", "seed", "device", "encoder")},
        "files": {name: str(run.path / name) for name in names if run.has(name)},
    }


def linkage_method_of(run: Run) -> str | None:
    """How clusters were joined: 'ward' or 'average'; None where a method does it in its own way."""
    if not run.has("shifts.json"):
        return None
    linkage_method: str | None = run.json("shifts").get("linkage_method")
    return linkage_method


def _changes(run: Run) -> dict[str, Any] | None:
    """What a review has changed, without a row per image."""
    if not run.has("changes.json"):
        return None
    long = ("moved", "changed_labels", "cannot_links")
    return {name: value for name, value in run.json("changes").items() if name not in long}


def _estimate(run: Run) -> dict[str, Any] | None:
    """How K came about, whether on few labels, and the numbers that fit them nearly as well; the
    file has the curve."""
    if not run.has("estimate.json"):
        return None
    estimate = run.json("estimate")
    near = numbers_near_best(estimate)
    names = ("is_given", "rule", "interval", "range", "by_labels")
    return {
        **{name: estimate.get(name) for name in names},
        "doubt": doubt_estimate(run),
        "near_best": [min(near), max(near)] if near else None,
        "file": str(run.path / "estimate.json"),
    }


def _confidence(run: Run) -> dict[str, Any] | None:
    """Whether confidence was calibrated and on how many labels held back; the file has the
    curves."""
    if not run.has("calibration.json"):
        return None
    calibration = run.json("calibration")
    return {
        "is_calibrated": calibration["is_calibrated"],
        "label_rate": calibration.get("label_rate"),
        "is_of_first": bool(calibration.get("is_of_first")),
        "n_labeled": round(sum(calibration["labeled"]["n_images"])),
        "n_novel": round(sum(calibration["novel"]["n_images"])),
        "file": str(run.path / "calibration.json"),
    }


def _merges(run: Run) -> list[dict[str, Any]]:
    """The closest pairs of categories, and whether they look like one."""
    return [
        {
            "categories": [merge.novel.category, merge.other.category],
            "separation": merge.separation,
            "looks_like_one": merge.looks_like_one,
        }
        for merge in suggested_merges(ReviewedRun.of(run))
    ]


def _splits(run: Run) -> list[dict[str, Any]]:
    """Categories that may hold another one, with the images that would stay and those that would
    leave."""
    snapshot = ReviewedRun.of(run)
    return [
        {
            "category": split.category.category,
            "probability": split.category.mixed_probability,
            "n_labeled": list(split.n_labeled),
            "groups": [[snapshot.assignments[row].path for row in group] for group in split.groups],
        }
        for split in suggested_splits(snapshot)
    ]


def doubt_estimate(run: Run) -> str | None:
    """Why not to trust an estimate: few labels, a wide interval, labels that are against a
    range."""
    estimate = run.json("estimate")
    if estimate["is_given"] or estimate["rule"] == COUNTED_BY:
        return None
    labels = [label for label in column(run.assignments, "label_given") if label]
    said = [doubt_labels(len(labels), len(set(labels)))]
    interval = estimate.get("interval")
    if interval and is_wide(interval):
        said.append(f"the 80 % interval of the number of categories is {span(interval)}")
    if estimate.get("by_labels"):
        said.append(against_range(estimate["by_labels"]))
    return "; ".join(filter(None, said)) or None
