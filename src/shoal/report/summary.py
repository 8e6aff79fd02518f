"""The run in words and numbers."""

from collections import Counter
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
    """Say what was found, how sure it is, and how it was made."""
    accuracy, note = _accuracy(run)
    return Summary(
        headline=f"{count(run.n_clusters, 'category')} in {count(len(run.assignments), 'image')}",
        sentences=tuple(
            filter(
                None,
                (
                    _found(run),
                    _reviewed(run),
                    _not_found(run),
                    _unsure(run),
                    how_sure(run),
                    _training(run),
                    _frozen_weight(run),
                    _linkage(run),
                    _skipped(run),
                ),
            )
        ),
        tiles=(
            SummaryTile(f"{len(run.assignments):,}", plural(len(run.assignments), "image")),
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
    known = (
        f"{count(n_known, 'category')} {plural(n_known, 'was')} known from labels"
        if n_known
        else ""
    )
    novel = f"{count(n_novel, 'category')} {plural(n_novel, 'is')} likely new" if n_novel else ""
    if known and novel:
        return f"{known}; {n_novel:,} {plural(n_novel, 'is')} likely new."
    return f"{known or novel}." if known or novel else "No category was found."


def _reviewed(run: Snapshot) -> str:
    """Say how much people have decided; a review of another answer is named."""
    if run.review is None:
        return (
            "A review of another answer is there; `shoal review` replays it."
            if run.has("review.jsonl")
            else ""
        )
    n_by_status = Counter(run.column("status"))
    said = [
        f"{n_by_status[status]:,} {status}"
        for status in STATUSES
        if n_by_status[status] and status != "predicted"
    ]
    return (
        f"Reviewed: {', '.join(said)}." if said else "Reviewed: names or categories were changed."
    )


def _not_found(run: Snapshot) -> str:
    """Name the categories without images, which are not counted: no image was given to them, or people left none."""
    return " ".join(filter(None, (_empty(run, is_novel=is_novel) for is_novel in (False, True))))


def _empty(run: Snapshot, *, is_novel: bool) -> str:
    names = [
        shown(one.category) for one in run.categories if not one.size and one.is_novel == is_novel
    ]
    if not (n := len(names)):
        return ""
    known = f"{count(n, 'known category')} got no image"
    novel = f"{count(n, 'novel category')} {plural(n, 'has')} no image left"
    return f"{novel if is_novel else known} ({first_few(names, MAX_NAMED)}) and {plural(n, 'is')} not counted."


def _unsure(run: Snapshot) -> str:
    n = int(run.is_unsure.sum())
    is_checked = not run.has("calibration.json") or run.json("calibration")["is_calibrated"]
    end = "" if is_checked else " Labels cannot say how far confidence can be trusted."
    if not n:
        return f"Every image has a confidence of at least {UNSURE_BELOW}.{end}"
    return f"{count(n, 'image')} {plural(n, 'is')} unsure (confidence below {UNSURE_BELOW}, or possibly new).{end}"


def _training(run: Snapshot) -> str:
    """Say whether training helped, where labels were kept from it to find out."""
    stopped = run.provenance.get("stopped_early")
    again = "again, with all labels, " if _is_whole(run) else ""
    early = (
        f"Training {again}was stopped after {stopped['epochs']} of {stopped['of']} epochs. "
        if stopped
        else ""
    )
    if not run.has("choice.json"):
        first = (
            "The answer is the one without training."
            if stopped and not run.has("model.json")
            else ""
        )
        return f"{early}{first}".rstrip()
    choice = run.json("choice")
    frozen = percent(float(choice["accuracy"]["frozen"]))
    trained = percent(float(choice["accuracy"]["trained"]))
    labels = count(int(choice["n_images"]), "label")
    test = "significant" if choice["kept"] == "trained" else "not significant"
    said = f"Held-out accuracy on {labels}: {frozen} frozen, {trained} trained ({test})."
    return f"{early}{said} The {choice['kept']} result was kept."


def _frozen_weight(run: Snapshot) -> str:
    """Say how much the encoder as it came counts beside the trained one, and where no label chose that, so."""
    weight = float(run.json("model")["frozen_weight"]) if run.has("model.json") else 0.0
    if not 0 < weight < 1:
        return ""
    usual = (
        ""
        if run.has("choice.json")
        else ", as was best on average with cms, because no label can judge training"
    )
    return f"The encoder as it came weighs {100 * weight:.0f} % beside the trained one{usual}."


def _linkage(run: Snapshot) -> str:
    is_average = run.has("shifts.json") and run.json("shifts").get("linkage_method") == "average"
    return f"{AVERAGE_LINKAGE[0].upper()}{AVERAGE_LINKAGE[1:]}." if is_average else ""


def _skipped(run: Snapshot) -> str:
    n = len(run.skipped)
    return f"{count(n, 'file')} could not be read; skipped.csv says why." if n else ""


def _accuracy(run: Snapshot) -> tuple[tuple[SummaryTile, ...], str]:
    if not run.has("accuracy.json"):
        return (), ""
    accuracy = run.json("accuracy")
    names = (("all", "All", ""), ("known", "Known", "known"), ("novel", "Novel", "novel"))
    tiles = tuple(
        SummaryTile(percent(float(accuracy[key])), label, kind)
        for key, label, kind in names
        if accuracy.get(key) is not None
    )
    of = [
        count(int(accuracy[key]), noun)
        for key, noun in (("n_images", "image"), ("n_classes", "class"))
        if key in accuracy
    ]
    note = (
        f"Accuracy against the given truth, {' of '.join(of)}"
        if of
        else "Accuracy against the given truth"
    )
    is_now = accuracy.get("categories") in (None, digest_rows(run.category_ids))
    return (
        tiles,
        note
        if is_now
        else f"{note}, before the review changed categories; `shoal evaluate` scores them now",
    )


def _facts(run: Snapshot) -> tuple[tuple[str, str], ...]:
    provenance = run.provenance
    seconds = provenance.get("seconds")
    packages = provenance.get("packages") or {}
    facts = (
        ("Encoder", provenance.get("encoder")),
        ("Trained for", _epochs(run)),
        ("Seed", provenance.get("seed")),
        ("Device", provenance.get("device")),
        ("Time", duration(float(seconds)) if seconds is not None else None),
        ("Started", _moment(provenance.get("started"))),
        ("Images from", provenance.get("root")),
        ("Command", provenance.get("command")),
        ("Shoal", packages.get("shoal")),
        ("Run folder", run.path.name),
    )
    return tuple((name, shown(str(value))) for name, value in facts if value not in (None, ""))


def _epochs(run: Snapshot) -> str:
    """How long a run was trained, and whether that was stopped before its end."""
    before = run.provenance.get("trial_epochs")
    stopped = run.provenance.get("stopped_early")
    n_trained = (before or len(run.metrics) or stopped["epochs"]) if stopped else len(run.metrics)
    trained = count(n_trained, "epoch") if n_trained else "not trained in this run"
    if stopped and _is_whole(run):
        return f"{trained}; training again, with all labels, was stopped early"
    if before and run.metrics and not stopped:
        return f"{count(before, 'epoch')} with some labels kept from it, then {trained} with all"
    return f"{trained}; stopped early, {stopped['of']} were planned" if stopped else trained


def _is_whole(run: Snapshot) -> bool:
    """Whether a training came to its end, though the one after it was stopped."""
    return run.provenance.get("stopped_early") is not None and bool(
        run.provenance.get("trial_epochs")
    )


def _moment(text: Any) -> str | None:
    """'2026-11-15T02:24:08+0000' as '2026-11-15 02:24'."""
    return str(text)[:16].replace("T", " ") if text else None
