"""A finished run as a dictionary, which `shoal discover --json` prints."""

from typing import Any

from shoal.discovery.results import summarize_run
from shoal.report.suggested_splits import suggested_splits
from shoal.report.suggestions import suggested_merges
from shoal.review.decisions import COUNTED_BY
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import RESULTS, UNCERTAIN_BELOW, Run, column, table_files
from shoal.words import doubt_labels, is_wide, span

FILES = ("categories.csv", "embeddings.npy", "tree.npy", "skipped.csv", "report.html")
"""Files that are listed in addition to the table of images, if a run has them."""

LONG_CHANGES = ("moved", "changed_labels", "cannot_links")
"""Parts of changes.json with a row per image, which are left out."""


def collect_facts(run: Run) -> dict[str, Any]:
    """Return the summary, counts, how certain they are, how they were computed, and the files."""
    rows = run.assignments
    provenance = run.provenance
    reviewed = ReviewedRun.of(run)
    best = [row for row in run.metrics if row.get("is_best")]
    n_labeled = sum(map(bool, column(rows, "label_given")))
    others = [str(run.path / name) for name in RESULTS if Run(run.path / name).is_finished]
    names = (*(file.name for file in table_files(run.path)), *FILES)
    changes = _content(run, "changes")
    for name in LONG_CHANGES:
        changes.pop(name, None)
    noted = ("stopped_early", "seconds", "started", "finished", "seed", "device", "encoder")
    return {
        "run": str(run.path),
        "summary": summarize_run(run),
        "n_images": len(rows),
        "n_labeled": n_labeled,
        "n_unlabeled": len(rows) - n_labeled,
        "n_unreadable": len(run.skipped),
        "n_uncertain": sum(value < UNCERTAIN_BELOW for value in column(rows, "confidence")),
        "n_clusters": run.n_clusters,
        "n_known": run.n_known,
        "n_novel": run.n_novel,
        "known_without_images": [row.category for row in run.categories if not row.size],
        "estimate": _estimate(run),
        "linkage": linkage_method_of(run),
        "confidence": _confidence(run),
        "suggested_merges": [
            {
                "categories": [merge.novel.category, merge.other.category],
                "separation": merge.separation,
                "looks_like_one": merge.looks_like_one,
            }
            for merge in suggested_merges(reviewed)
        ],
        "suggested_splits": [
            {
                "category": split.category.category,
                "probability": split.category.mixed_probability,
                "n_labeled": [int(reviewed.is_labeled[group].sum()) for group in split.groups],
                "groups": [
                    [reviewed.assignments[row].path for row in group] for group in split.groups
                ],
            }
            for split in suggested_splits(reviewed)
        ],
        "validation_accuracy": best[-1]["validation_accuracy"] if best else None,
        "changes": changes or None,
        "choice": _content(run, "choice") or None,
        "other_result": next(iter(others), None),
        **{name: provenance.get(name) for name in noted},
        "files": {name: str(run.path / name) for name in names if run.has(name)},
    }


def _content(run: Run, name: str) -> dict[str, Any]:
    """Return the content of a JSON file; empty if the run has none."""
    return run.json(name) if run.has(f"{name}.json") else {}


def linkage_method_of(run: Run) -> str | None:
    """Return 'ward' or 'average'; None if the method clusters in another way."""
    return _content(run, "shifts").get("linkage_method")


def _estimate(run: Run) -> dict[str, Any] | None:
    """Return how K was chosen, with its interval."""
    estimate = _content(run, "estimate")
    if not estimate:
        return None
    return {
        **{name: estimate.get(name) for name in ("is_given", "rule", "interval", "range")},
        "doubt": doubt_estimate(run),
        "file": str(run.path / "estimate.json"),
    }


def _confidence(run: Run) -> dict[str, Any] | None:
    """Return whether confidence was calibrated, and on how many labels."""
    calibration = _content(run, "calibration")
    if not calibration:
        return None
    return {
        "is_calibrated": calibration["is_calibrated"],
        "label_rate": calibration.get("label_rate"),
        "is_from_frozen": bool(calibration.get("is_from_frozen")),
        "n_labeled": round(sum(calibration["labeled"]["n_images"])),
        "n_novel": round(sum(calibration["novel"]["n_images"])),
        "file": str(run.path / "calibration.json"),
    }


def doubt_estimate(run: Run) -> str | None:
    """Return why not to trust an estimate of K: few labels or a wide interval; else None."""
    estimate = run.json("estimate")
    if estimate["is_given"] or estimate["rule"] == COUNTED_BY:
        return None
    labels = [label for label in column(run.assignments, "label_given") if label]
    doubts = [doubt_labels(len(labels), len(set(labels)))]
    interval = estimate.get("interval")
    if interval and is_wide(interval):
        doubts.append(f"the 80 % interval of the number of categories is {span(interval)}")
    return "; ".join(filter(None, doubts)) or None
