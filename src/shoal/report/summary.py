"""The run in words and numbers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.checksums import digest_rows
from shoal.report.certainty import how_sure
from shoal.report.snapshot import Snapshot
from shoal.review.actions import STATUSES
from shoal.runs import UNSURE_BELOW
from shoal.text import shown
from shoal.words import (
    AVERAGE_LINKAGE,
    count,
    duration,
    first_few,
    percent,
    plural,
)

MAX_NAMED = 5
"""How many categories a sentence lists."""


@dataclass(frozen=True, slots=True)
class SummaryTile:
    """A number that stands out."""

    value: str
    label: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the first screen says."""

    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[SummaryTile, ...]
    accuracy: tuple[SummaryTile, ...]
    """All, Known and Novel, where a truth was given."""
    accuracy_note: str
    facts: tuple[tuple[str, str], ...]
    """What was run, and how: name and value."""


def summarize(run: Snapshot) -> Summary:
    """Say what was found, how certain it is, and how it was made."""
    sentences = (
        _found(run),
        _reviewed(run),
        _empty(run, is_novel=False),
        _empty(run, is_novel=True),
        _unsure(run),
        how_sure(run),
        _training(run),
        _linkage(run),
        _skipped(run),
    )
    n_images = len(run.assignments)
    accuracy, note = _accuracy(run)
    return Summary(
        headline=f"{count(run.n_clusters, 'category')} in {count(n_images, 'image')}",
        sentences=tuple(filter(None, sentences)),
        tiles=(
            SummaryTile(f"{n_images:,}", plural(n_images, "image")),
            SummaryTile(f"{int(run.is_labeled.sum()):,}", "labeled"),
            SummaryTile(f"{run.n_known:,}", "known", "known"),
            SummaryTile(f"{run.n_novel:,}", "novel", "novel"),
            SummaryTile(f"{int(run.is_unsure.sum()):,}", "unsure"),
        ),
        accuracy=accuracy,
        accuracy_note=note,
        facts=_facts(run),
    )


def _found(run: Snapshot) -> str:
    n_known = run.n_known
    n_novel = run.n_novel
    known = f"{count(n_known, 'category')} {plural(n_known, 'was')} known from labels"
    is_new = f"{plural(n_novel, 'is')} likely new"
    if n_known and n_novel:
        return f"{known}; {n_novel:,} {is_new}."
    if n_known:
        return f"{known}."
    if n_novel:
        return f"{count(n_novel, 'category')} {is_new}."
    return "No category was found."


def _reviewed(run: Snapshot) -> str:
    """Say how much people have decided; a review of another answer is named."""
    if run.review is not None:
        n_by_status = Counter(run.column("status"))
        decided = [status for status in STATUSES if status != "predicted" and n_by_status[status]]
        counts = [f"{n_by_status[status]:,} {status}" for status in decided]
        return f"Reviewed: {', '.join(counts) or 'names or categories were changed'}."
    if run.has("review.jsonl"):
        return "A review of another answer is there; `shoal review` replays it."
    return ""


def _empty(run: Snapshot, *, is_novel: bool) -> str:
    """Name the categories without images, which are not counted."""
    empty = [one for one in run.categories if not one.size and one.is_novel == is_novel]
    n = len(empty)
    if not n:
        return ""
    if is_novel:
        what = f"{count(n, 'novel category')} {plural(n, 'has')} no image left"
    else:
        what = f"{count(n, 'known category')} got no image"
    names = first_few([shown(one.category) for one in empty], MAX_NAMED)
    return f"{what} ({names}) and {plural(n, 'is')} not counted."


def _unsure(run: Snapshot) -> str:
    n = int(run.is_unsure.sum())
    end = ""
    if not run.json("calibration")["is_calibrated"]:
        end = " Labels cannot say how far confidence can be trusted."
    if not n:
        return f"Every image has a confidence of at least {UNSURE_BELOW}.{end}"
    limit = f"confidence below {UNSURE_BELOW}, or possibly new"
    return f"{count(n, 'image')} {plural(n, 'is')} unsure ({limit}).{end}"


def _training(run: Snapshot) -> str:
    """Say whether training was stopped early, and whether it helped, where held-out labels tell."""
    sentences = []
    stopped = run.provenance.get("stopped_early")
    if stopped:
        which = "Training"
        if run.provenance.get("trial_epochs"):
            which = "Training again, with all labels,"
        sentences.append(
            f"{which} was stopped after {stopped['epochs']} of {stopped['of']} epochs."
        )
    if run.has("choice.json"):
        sentences.append(_choice(run.json("choice")))
    elif stopped and not run.has("model.json"):
        sentences.append("The answer is the one without training.")
    return " ".join(sentences)


def _choice(choice: Mapping[str, Any]) -> str:
    """Compare the accuracies of the frozen and the trained result on held-out labels."""
    labels = count(int(choice["n_images"]), "label")
    frozen = percent(float(choice["accuracy"]["frozen"]))
    trained = percent(float(choice["accuracy"]["trained"]))
    test = "significant"
    if choice["kept"] == "frozen":
        test = "not significant"
    return (
        f"Held-out accuracy on {labels}: {frozen} frozen, {trained} trained ({test}). "
        f"The {choice['kept']} result was kept."
    )


def _linkage(run: Snapshot) -> str:
    if not run.has("shifts.json") or run.json("shifts").get("linkage_method") != "average":
        return ""
    return f"{AVERAGE_LINKAGE[0].upper()}{AVERAGE_LINKAGE[1:]}."


def _skipped(run: Snapshot) -> str:
    n = len(run.skipped)
    return f"{count(n, 'file')} could not be read; skipped.csv says why." if n else ""


def _accuracy(run: Snapshot) -> tuple[tuple[SummaryTile, ...], str]:
    """All, Known and Novel against the given truth, and what they were measured on."""
    if not run.has("accuracy.json"):
        return (), ""
    accuracy = run.json("accuracy")
    kinds = {"all": "", "known": "known", "novel": "novel"}
    tiles = tuple(
        SummaryTile(percent(float(accuracy[name])), name.title(), kind)
        for name, kind in kinds.items()
        if accuracy.get(name) is not None
    )
    images = count(int(accuracy["n_images"]), "image")
    classes = count(int(accuracy["n_classes"]), "class")
    note = f"Accuracy against the given truth, {images} of {classes}"
    if accuracy.get("categories") not in (None, digest_rows(run.category_ids)):
        note += ", before the review changed categories; `shoal evaluate` scores them now"
    return tiles, note


def _facts(run: Snapshot) -> tuple[tuple[str, str], ...]:
    provenance = run.provenance
    seconds = provenance.get("seconds")
    started = str(provenance["started"])
    facts = {
        "Encoder": provenance.get("encoder"),
        "Trained for": _epochs(run),
        "Seed": provenance["seed"],
        "Device": provenance["device"],
        "Time": "" if seconds is None else duration(float(seconds)),
        "Started": started[:16].replace("T", " "),  # 2026-11-15 02:24
        "Images from": provenance.get("root"),
        "Command": provenance["command"],
        "Shoal": provenance["packages"].get("shoal"),
        "Run folder": run.path.name,
    }
    return tuple(
        (name, shown(str(value))) for name, value in facts.items() if value not in (None, "")
    )


def _epochs(run: Snapshot) -> str:
    """How long a run was trained, and whether that was stopped before its end."""
    n_epochs = len(run.metrics)
    n_trial = run.provenance.get("trial_epochs")
    stopped = run.provenance.get("stopped_early")
    if stopped and n_trial:
        return f"{count(n_trial, 'epoch')}; training again, with all labels, was stopped early"
    if stopped:
        n_epochs = n_epochs or stopped["epochs"]
        return f"{count(n_epochs, 'epoch')}; stopped early, {stopped['of']} were planned"
    if not n_epochs:
        return "not trained in this run"
    if n_trial:
        trial = f"{count(n_trial, 'epoch')} with some labels kept from it"
        return f"{trial}, then {count(n_epochs, 'epoch')} with all"
    return count(n_epochs, "epoch")
