"""What the page asks for: the whole state in one binary answer, changes since then, and single
images in words.

N images. All numbers are little-endian.
"""

from pathlib import PurePosixPath

import numpy as np

from shoal.arrays import Ints
from shoal.review.actions import NO_CATEGORY, STATUSES, Entry
from shoal.review.effects import again, why_not
from shoal.review.history import Window
from shoal.review.parts import proposed_split
from shoal.review.review import Review
from shoal.review.reviewed_run import names_today
from shoal.review.state import Record, State
from shoal.review.suspected_labels import speaks_for
from shoal.server.packing import pack_numbers, pack_rows
from shoal.text import shown
from shoal.words import count, first_few

MAX_ENTRIES = 200
"""Actions of the past that the page lists."""

KEEPING = ("confirm", "flag", "rename", "distinct")
"""Actions that leave images in their categories."""

MAX_REASON = 300
"""Characters of why something cannot be undone."""

MIXED_SHOWN = 8
"""Images that show the part of a category that may be another one."""

SURE = 250
"""Confidence 1 as the page gets it."""


def columns(review: Review) -> bytes:
    """Order (rows, most typical first), category, given label, what the images around speak for,
    status, confidence.
    """
    with review.lock:
        state = review.state
        answer = review.state
        known = answer.id_of
        given, around = (
            np.array([known.get(name, NO_CATEGORY) if name else NO_CATEGORY for name in names])
            for names in (answer.columns["label_given"], speaks_for(answer.columns))
        )
        confidence = np.rint(np.nan_to_num(answer.columns["confidence"]).clip(0, 1) * SURE)
        numbers = (answer.typical_order, state.images.category, given, around)
        bytes_ = (state.images.status, confidence)
        return b"".join(
            [column.astype("<i4").tobytes() for column in numbers]
            + [column.astype("u1").tobytes() for column in bytes_]
        )


def category(number: int, record: Record) -> dict[str, object]:
    """A category for the page; its size it counts itself."""
    return {
        "id": number,
        "name": shown(record.name),
        "novel": record.is_novel,
        "named": record.is_named,
        "into": record.merged_into,
    }


def categories(review: Review) -> list[dict[str, object]]:
    """Every category that ever was, with what the run says of it."""
    answered = {c.category_id: c for c in review.state.found}
    ids = review.state.id_of
    is_labeled = np.array([bool(label) for label in review.state.columns["label_given"]])
    rows = []
    for number, record in review.state.records.items():
        row = category(number, record)
        if number in answered and answered[number].nearest_known in ids:
            row["nearest"] = ids[answered[number].nearest_known]
            row["similarity"] = _round(answered[number].nearest_known_similarity)
        sides = proposed_split(review.state, number)
        if sides is not None:
            # Labeled and unlabeled images on both sides, and some of those that would leave.
            counts = [[int(is_labeled[own].sum()), int((~is_labeled[own]).sum())] for own in sides]
            row["mixed"] = {"sides": counts, "rows": sides[1][:MIXED_SHOWN].tolist()}
        rows.append(row)
    return rows


def changes(review: Review, since: int, by: str, window: Window | None = None) -> dict[str, object]:
    """What has changed since an action: images, categories, the actions themselves, and what
    `by` can undo there.
    """
    with review.lock:
        state = review.state
        since = max(0, since)
        rows: Ints = np.flatnonzero(state.images.version > since)
        touched = [number for number, version in state.versions.items() if version > since]
        moved = None
        if not _leaves_categories(state, since):
            moved = pack_numbers(state.images.category[rows])
        return {
            "seq": state.seq,
            "rows": pack_rows(rows, len(review.state)),
            "category": moved,
            "status": pack_numbers(state.images.status[rows]),
            "categories": [category(n, state.records[n]) for n in touched if n in state.records],
            "gone": [number for number in touched if number not in state.records],
            "entries": [
                entry_words(state, entry) for entry in state.entries[since:][-MAX_ENTRIES:]
            ],
            "undo": _again(state, "undo", by, window),
            "redo": _again(state, "redo", by, window),
            "distinct": distinct_pairs(state, since),
        }


def distinct_pairs(state: State, since: int = -1) -> list[tuple[int, int]] | None:
    """The pairs of categories that people said are not the same.

    None where that was changed for none since then.
    """
    is_changed = since < 0 or any(version > since for version in state.distinct_versions.values())
    return sorted(state.distinct) if is_changed else None


def _again(state: State, kind: str, by: str, window: Window | None) -> str:
    """What a person can undo or redo, and which later actions are skipped.

    Those that somebody has built on.
    """
    of, skipped = again(state, kind, by, window)
    if of is None:
        return ""
    said = _in_words(state, state.entry(of))
    if skipped:
        reason = shown(str(why_not(state, kind, skipped[0])), MAX_REASON)
        said += f" (skipped {count(len(skipped), 'later action')}: {reason})"
    return said


def _leaves_categories(state: State, since: int) -> bool:
    """Whether all that was done since an action has left images in their categories."""
    done = (entry.action for entry in state.entries[since:])
    return all((state.entry(one.of).action if one.of else one).kind in KEEPING for one in done)


def entry_words(state: State, entry: Entry) -> dict[str, object]:
    """An action for a person to read."""
    return {
        "seq": entry.seq,
        "by": entry.by,
        "at": entry.at,
        "window": entry.window,
        "action": entry.action.kind,
        "words": _in_words(state, entry),
    }


def _in_words(state: State, entry: Entry) -> str:
    """What an action did; categories by the names of today."""
    action = entry.action
    kind = action.kind
    images = count(len(action.rows), "image")
    name = _name(state, action.category)
    others = [_name(state, number) for number in action.categories]
    if kind == "assign":
        return f"move {images}{_origin(state, entry)} to {name}"
    if kind == "create":
        return f"new category {shown(action.name)} with {images}{_origin(state, entry)}"
    if kind == "rename":
        before = state.before(entry.seq).records[action.category]
        old = shown(before.name) if before else name
        return f"rename {old} to {shown(action.name)}"
    if kind == "merge":
        return f"merge {', '.join(others[:3])} into {name}"
    if kind == "distinct":
        return f"{' and '.join(others)} are not the same"
    if kind == "split":
        return f"split {name} into {len(action.groups) + 1}"
    if kind in ("undo", "redo"):
        what = _in_words(state, state.entry(action.of)) if action.of else ""
        return f"{kind} action {action.of}, {what}"
    homes = [_name(state, one.category) for one in action.groups if one.category != NO_CATEGORY]
    where = f"of {first_few(homes, 3)}" if homes else "without category"
    return f"{kind} {images} {where}"


def _origin(state: State, entry: Entry) -> str:
    """Where the images were that an action has moved; some may have been there already."""
    homes = {*np.unique(state.before(entry.seq).values.category).tolist()} - {entry.action.category}
    names = [_name(state, number) for number in homes if number != NO_CATEGORY]
    origins = []
    if len(names) == 1:
        origins.append(f" from {names[0]}")
    elif names:
        origins.append(f" from {count(len(names), 'category')}")
    if NO_CATEGORY in homes:
        origins.append(" without category")
    return " and".join(origins)


def _name(state: State, number: int) -> str:
    record = state.records.get(number)
    return shown(record.name) if record else f"category {number}"


def images(review: Review, rows: list[int]) -> list[dict[str, object]]:
    """What is known of some images.

    Categories by the names they have today, as text that shows everything.
    """
    with review.lock:
        names = names_today(review.state)
        return [_image(review, row, names) for row in rows]


def _image(review: Review, row: int, names: dict[str, str]) -> dict[str, object]:
    state = review.state
    column = review.state.columns

    def named(field: str) -> str:
        first = column[field][row]
        return shown(names.get(first, first))

    decided = int(state.images.decided[row])
    entry = state.entry(decided) if decided else None
    path = review.state.paths[row]
    return {
        "row": row,
        "path": shown(path),
        "name": shown(PurePosixPath(path).name),
        "given": named("label_given"),
        "found": named("category"),
        "confidence": _round(column["confidence"][row]),
        "outlier": _round(column["outlier_score"][row]),
        "nearest": named("nearest_known"),
        "similarity": _round(column["nearest_known_similarity"][row]),
        "second": "" if state.is_second_forbidden(row) else named("second_category"),
        "status": STATUSES[int(state.images.status[row])],
        "by": entry.by if entry else "",
        "at": entry.at if entry else "",
        "rejected": [_name(state, c) for c in sorted(state.rejected.get(row, ()))],
    }


def _round(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
