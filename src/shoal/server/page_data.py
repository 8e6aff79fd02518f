"""What the page is sent: the state of all images in binary form, changes, and the run's pictures,
which are packed thumbnails and originals from the collection."""

import io
import os
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

import numpy as np

from shoal.arrays import Ints
from shoal.boxes import split_file, split_name
from shoal.errors import DataError, count, first_few, shown
from shoal.report.summary import expected_labels
from shoal.review.actions import STATUSES, Action
from shoal.review.review import Review
from shoal.review.reviewed_run import current_names
from shoal.review.state import Record, State, proposed_split
from shoal.runs import NO_CATEGORY, Run

# Maximum number of past actions on the page
MAX_ENTRIES = 200

# Maximum number of characters of the name of a category in the description of an action
MAX_NAME = 80

# Images shown of the part of a mixed category that would leave
N_MIXED_SHOWN = 8

# How the page calls actions that it calls otherwise than the log
VERBS = {"assign": "move", "create": "new category", "distinct": "mark as different"}

# Confidence 1 in the bytes that the page receives
CONFIDENCE_SCALE = 250

# Maximum pixels of the longer side of an enlarged image
MAX_SIDE = 2048

# The same for an image that is zoomed into
WHOLE_SIDE = 8192

# Minimum and maximum pixels of an image that replaces a thumbnail that is too small
SHARP_SIDES = (224, 640)

QUALITY = 88


def columns(review: Review) -> bytes:
    """Return the columns of all images, one after the other.

    Typical order (rows), category, given label and the label that the neighbors suggest as 4-byte
    integers, then status and confidence as bytes.
    """
    with review.lock:
        state = review.state
        labels, expected = (
            np.array([state.id_of.get(name, NO_CATEGORY) for name in names])
            for names in (state.columns["label_given"], expected_labels(state.columns))
        )
        confidence = np.nan_to_num(state.columns["confidence"]).clip(0, 1) * CONFIDENCE_SCALE
        integers = (state.typical_order, state.category, labels, expected)
        # Rounded down, so that an image below a limit stays below it.
        small = (state.status, np.floor(confidence + 1e-6))
        return np.stack(integers).astype("<i4").tobytes() + np.stack(small).astype("u1").tobytes()


def packed(numbers: Ints) -> str:
    """Return integers for JSON in base64, as pairs of a difference and how often it is repeated.

    Equal numbers, and all rows in ascending order, are one or two pairs.
    """
    steps = np.diff(numbers, prepend=0)
    starts = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1))
    pairs = np.array([steps[starts], np.diff(starts, append=len(steps))], "<i4").T
    return b64encode(pairs.tobytes()).decode()


def category(number: int, record: Record) -> dict[str, object]:
    """Return a category for the page, which counts its images itself."""
    return {
        "id": number,
        "name": shown(record.name),
        "novel": record.is_novel,
        "named": record.is_named,
        "into": record.merged_into,
        "note": shown(record.note),
    }


def categories(review: Review) -> list[dict[str, object]]:
    """Return all categories, merged ones included, with what the run found out about them."""
    state = review.state
    rows = []
    for number, record in state.records.items():
        row = category(number, record)
        found = state.found.get(number)
        if found is not None and found.nearest_known in state.id_of:
            row["nearest"] = state.id_of[found.nearest_known]
            row["similarity"] = _round(found.nearest_known_similarity)
        sides = proposed_split(state, number)
        if sides is not None:
            # Labeled and unlabeled images on both sides, and some of those that would leave.
            counts = [np.bincount(~state.is_labeled[side], minlength=2).tolist() for side in sides]
            row["mixed"] = {"sides": counts, "rows": sides[1][:N_MIXED_SHOWN].tolist()}
        rows.append(row)
    return rows


def changes(review: Review, since: int, by: str) -> dict[str, object]:
    """Return the images, categories and actions that changed after action `since`, and what the
    person `by` can undo and redo."""
    with review.lock:
        state = review.state
        last_actions = {"undo": state.last_done(by), "redo": state.last_undone(by)}
        later = state.changes[since:]
        is_changed = np.zeros(len(state), bool)
        for change in later:
            is_changed[change.rows] = True
        rows = np.flatnonzero(is_changed)
        touched = {number for change in later for number in change.records}
        new_actions = state.actions[since:][-MAX_ENTRIES:]
        return {
            "seq": state.seq,
            "rows": packed(rows),
            "category": packed(state.category[rows]),
            "status": packed(state.status[rows]),
            "categories": [category(n, state.records[n]) for n in touched if n in state.records],
            "gone": [number for number in touched if number not in state.records],
            "entries": [entry_fields(state, action) for action in new_actions],
            "distinct": sorted(state.distinct),
            **{
                kind: describe(state, state.action(seq)) if seq else ""
                for kind, seq in last_actions.items()
            },
        }


def entry_fields(state: State, action: Action) -> dict[str, object]:
    """Return an action for the history on the page, with an image and a category to show it by."""
    rows, categories = _subject(state, action)
    return {
        "row": int(rows[0]) if len(rows) else -1,
        "category": categories[0] if categories else NO_CATEGORY,
        "seq": action.seq,
        "by": action.by,
        "at": action.at,
        "window": action.window,
        "action": action.kind,
        "words": describe(state, action),
    }


def describe(state: State, action: Action) -> str:
    """Return a description of an action, such as 'move 2 images (gull)', with the current names of
    the categories."""
    rows, categories = _subject(state, action)
    words = _verb(action)
    if action.of:
        words += f" {_verb(state.action(action.of))}"
    if len(rows):
        words += f" {count(len(rows), 'image')}"
    names = [_name(state, number) for number in categories]
    return f"{words} ({first_few(names, 3)})" if names else words


def _verb(action: Action) -> str:
    kind = action.actions[0].kind if action.actions else action.kind
    return VERBS.get(kind, kind)


def _subject(state: State, action: Action) -> tuple[Ints, list[int]]:
    """Return the images and the categories of an action, or of the one that it undoes or redoes."""
    if action.of:
        action = state.action(action.of)
    numbers: dict[int, None] = {}
    for each in action.actions or (action,):
        groups = [group.category for group in each.groups]
        numbers |= dict.fromkeys([each.category, *each.categories, *groups])
    return action.rows, [number for number in numbers if number != NO_CATEGORY]


def _name(state: State, number: int) -> str:
    return shown(state.name(number), MAX_NAME)


def images(review: Review, rows: list[int]) -> list[dict[str, object]]:
    """Return the details of some images, with the current names of categories."""
    with review.lock:
        names = current_names(review.state)
        return [_image(review.state, row, names) for row in rows]


def _image(state: State, row: int, names: dict[str, str]) -> dict[str, object]:
    columns = state.columns

    def current_name(column: str) -> str:
        original = columns[column][row]
        return shown(names.get(original, original))

    decided = int(state.decided[row])
    action = state.action(decided) if decided else None
    path = state.paths[row]
    return {
        "row": row,
        "path": shown(path),
        "is_box": split_name(path)[1] is not None,
        "name": shown(PurePosixPath(path).name),
        "given": current_name("label_given"),
        "found": current_name("category"),
        "confidence": _round(columns["confidence"][row]),
        "outlier": _round(columns["outlier_score"][row]),
        "nearest": current_name("nearest_known"),
        "similarity": _round(columns["nearest_known_similarity"][row]),
        "second": "" if state.is_second_rejected(row) else current_name("second_category"),
        "status": STATUSES[int(state.status[row])],
        "by": action.by if action else "",
        "at": action.at if action else "",
        "note": shown(state.notes.get(row, "")),
        "rejected": [_name(state, c) for c in sorted(state.rejections[state.rejected[row]])],
    }


def by_date(dates: list[str]) -> dict[str, object]:
    """Return the dates of all images, and their rows in both orders; those without a date come
    last."""
    dated = sorted((row for row, date in enumerate(dates) if date), key=dates.__getitem__)
    undated = [row for row, date in enumerate(dates) if not date]
    return {"dates": dates, "oldest": dated + undated, "newest": dated[::-1] + undated}


def _round(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None


class Originals:
    """The image files of a run, in their collection or in the folder `images`."""

    def __init__(self, run: Run, paths: Sequence[str], images: Path | None = None) -> None:
        self.paths = paths
        self.get = lru_cache(maxsize=256)(self._get)
        self._zooming = threading.Lock()
        # Finds images on a network or in shards
        self.find: Callable[[str], str] | None = None
        self.root: Path | None = None
        root = str(images or run.provenance.get("root") or "")
        if root and not Path(root).is_dir():
            # Imported here, because the readers take long to import and a folder needs none.
            from shoal.data.readers.shards import is_stored_source, location_finder

            self.find = location_finder(root) if is_stored_source(root) else None
        if root and self.find is None:
            self.root = Path(os.path.abspath(root))  # noqa: PTH100  (keeps symbolic links)

    @property
    def missing(self) -> str:
        """Why originals cannot be shown; empty if there is their folder, or an address, which is
        not contacted."""
        if self.find is not None or (self.root is not None and self.root.is_dir()):
            return ""
        if self.root is None:
            return (
                "the run was not made from image files; give the folder of the images: "
                "`shoal review --images FOLDER`"
            )
        return (
            f"there is no folder {shown(str(self.root))}; if they were moved, give their folder: "
            "`shoal review --images FOLDER`"
        )

    def file(self, row: int) -> Path:
        """Return the file of a row; refuse one outside the folder of the collection."""
        if self.root is None:
            raise DataError("the run was not made from image files")
        file = Path(os.path.normpath(self.root / self.paths[row]))
        if not file.is_relative_to(self.root) or file == self.root:
            raise DataError("the path leads out of the collection")
        return file

    @cached_property
    def dates(self) -> list[str]:
        """(N,) when each image was taken, see `date_of`; empty for one that is not a local file."""
        return [self._date(row) for row in range(len(self.paths))]

    def _date(self, row: int) -> str:
        from shoal.data.pixels.decoding import date_of

        try:
            return date_of(split_file(str(self.file(row)))[0])
        except DataError:
            return ""

    def whole(self, row: int, *, is_around: bool) -> bytes:
        """Return an image with all of its pixels; one at a time and not cached, because it is
        large."""
        with self._zooming:
            return self._get(row, WHOLE_SIDE, is_around)

    def boxes(self, row: int) -> dict[str, object]:
        """Return the size of the image that a box is in, and its boxes, each with its row."""
        from shoal.data.pixels.decoding import Unreadable, image_size

        image, _ = split_name(self.paths[row])
        boxes = []
        for other, path in enumerate(self.paths):
            if path.startswith(image):
                file, box = split_name(path)
                if file == image and box:
                    boxes.append([other, *box])
        try:
            return {"size": image_size(split_file(str(self.file(row)))[0]), "boxes": boxes}
        except Unreadable as error:
            raise DataError(f"the original cannot be shown: {error}") from error

    def _get(self, row: int, side: int, is_around: bool = False) -> bytes:
        """Return an image as JPEG, upright, its longer side at most `side`; `is_around` asks for
        the image that a box is in."""
        from shoal.data.pixels.decoding import Unreadable, decode_whole

        try:
            source = str(self.file(row)) if self.find is None else self.find(self.paths[row])
            if is_around:
                source, _ = split_file(source)
            image = decode_whole(source, side)
        except Unreadable as error:
            raise DataError(f"the original cannot be shown: {error}") from error
        file = io.BytesIO()
        image.save(file, "JPEG", quality=QUALITY)
        return file.getvalue()
