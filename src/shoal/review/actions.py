"""The actions of a review, in memory and as lines of `review.jsonl`.

Every line of the log is one JSON object with `seq` (0, 1, 2, …), `action`, `by` (the person) and
`at` (ISO 8601, UTC). Actions of the review page also have `window`, a random name of the page. The
first line, seq 0, describes the run. Images are given by path, categories by id.

    start    result (checksum of paths, categories and assignments), categories: a list of
             {category, name, exemplars}, as found by the run
    confirm  groups: [{category, images}]    the images belong to the category they are in
    reject   groups: [{category, images}]    they do not; they now have no category (-1)
    flag     groups: [{category, images}]    a person is uncertain; category -1 for images without
    refuse   category, images                they do not belong to a category they are not in, and
                                             stay where they are
    assign   category, images                moves images to a category
    create   category, name, images          a new category with a new id
    rename   category, name                  the name must be unique
    merge    categories, into                moves the images of `categories` to `into`
    split    category, parts: [{category, images, name}]   moves images to new categories
    distinct categories                      the two categories are different
    note     category, images, text          a note on images, with category -1, or on a category;
                                             empty text removes it, words such as #blurred are tags
    batch    actions: [{action, …}]          renames or merges of different categories, which are
                                             done and undone together
    undo     of                              takes back the action with that seq
    redo     of                              takes back its undo

An image has a status: predicted (no decision), confirmed, rejected, moved (by assign and create)
or flagged. A merge or a split moves images and does not change their status. `line_of` and
`parse_action` convert between both forms; in memory an image is a row, its position in the run.
"""

import json
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.runs import NO_CATEGORY

# Maximum number of characters in a category name
MAX_NAME = 200

# Maximum number of characters in a note
MAX_NOTE = 1_000

# Zero-width characters that Persian and Hindi names need
JOINERS = dict.fromkeys((0x200C, 0x200D))

UNREADABLE = "a field is missing or has the wrong type"

STATUSES = ("predicted", "confirmed", "rejected", "moved", "flagged")
PREDICTED, CONFIRMED, REJECTED, MOVED, FLAGGED = range(len(STATUSES))

# The fields of each kind of action, in the order in which they are written
FIELDS = {
    "confirm": ("groups",),
    "reject": ("groups",),
    "flag": ("groups",),
    "refuse": ("category", "images"),
    "assign": ("category", "images"),
    "create": ("category", "name", "images"),
    "rename": ("category", "name"),
    "merge": ("categories", "into"),
    "split": ("category", "parts"),
    "distinct": ("categories",),
    "note": ("category", "images", "text"),
    "batch": ("actions",),
    "undo": ("of",),
    "redo": ("of",),
}

BATCHED = ("rename", "merge")


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Group:
    """Images and their category; in a split, the new category and its name."""

    category: int
    rows: Ints
    name: str = ""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Action:
    """One action; the module's docstring lists the fields of each kind."""

    kind: str
    # The groups of confirm, reject and flag, the parts of a split, the images of assign, create and
    # refuse
    groups: tuple[Group, ...] = ()
    # The category it changes; the target of a merge
    category: int = NO_CATEGORY
    # The categories of merge (without the target) and distinct
    categories: tuple[int, ...] = ()
    name: str = ""
    text: str = ""
    actions: tuple["Action", ...] = ()
    of: int = 0
    # Its number in the log; 0 for an action that is not in a log yet
    seq: int = 0
    by: str = ""
    at: str = ""
    # The page on which it was done; empty for Python and replayed actions
    window: str = ""

    @property
    def rows(self) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(group.rows for group in self.groups)])


def about_images(kind: str, category: int, rows: Ints, name: str = "") -> Action:
    """Return an action about images and one category, such as assign and create."""
    group = Group(category=category, rows=rows)
    return Action(kind=kind, category=category, name=name, groups=(group,))


def checked_name(name: object) -> str:
    """Return a category name stripped and in Unicode's NFC form; refuse an unreadable one."""
    return _checked_text("name", name, 1, MAX_NAME)


def _checked_text(what: str, text: object, shortest: int, longest: int) -> str:
    found = text.strip() if isinstance(text, str) else "\n"  # not printable
    letters = found.translate(JOINERS)
    if not letters.isprintable() or len(letters) < shortest or len(found) > longest:
        raise UsageError(
            f"{what}: found {str(text)[:40]!r}, expected {shortest} to {longest:,} printable "
            "characters"
        )
    return composed(found)


def composed(name: str) -> str:
    """Return a name in NFC form, so that names that look the same are equal."""
    return unicodedata.normalize("NFC", name)


def line_of(action: Action, encoded_paths: Sequence[str]) -> str:
    """Return the line of an action in the log; `encoded_paths` are the paths of all images as JSON.

    Encoding 100,000 paths anew would take a quarter of the time of an action on them.
    """
    line: dict[str, object] = {
        "seq": action.seq,
        "action": action.kind,
        "by": action.by,
        "at": action.at,
    }
    if action.window:
        line["window"] = action.window
    encoded = {name: encode(value) for name, value in line.items()}
    return _joined(encoded | _encoded_fields(action, encoded_paths))


def encode(value: object) -> str:
    """Return compact JSON, in ASCII because file names may contain lone surrogates."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _joined(encoded: Mapping[str, str]) -> str:
    """Return a JSON object whose values are JSON already."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in encoded.items()) + "}"


def _encoded_fields(action: Action, encoded_paths: Sequence[str]) -> dict[str, str]:
    groups = []
    for group in action.groups:
        images = ",".join([encoded_paths[row] for row in group.rows.tolist()])
        fields = {"category": encode(group.category), "images": f"[{images}]"}
        if action.kind == "split":
            fields["name"] = encode(group.name)
        groups.append(fields)
    actions = [
        _joined({"action": encode(each.kind), **_encoded_fields(each, encoded_paths)})
        for each in action.actions
    ]
    joined_groups = f"[{','.join(map(_joined, groups))}]"
    found = {
        "category": encode(action.category),
        "into": encode(action.category),
        "categories": encode(action.categories),
        "name": encode(action.name),
        "text": encode(action.text),
        "of": encode(action.of),
        "groups": joined_groups,
        "parts": joined_groups,
        "images": groups[0]["images"] if groups else "[]",
        "actions": f"[{','.join(actions)}]",
    }
    return {name: found[name] for name in FIELDS[action.kind]}


def parse_action(
    kind: str,
    fields: Mapping[str, Any],
    find_rows: Callable[[Any], Ints],
    kinds: Collection[str] = FIELDS,
) -> Action:
    """Return the action of a log line or of a request with the same fields.

    `find_rows` converts its images to rows. Raises UsageError for an unknown kind, name or image,
    and KeyError or TypeError if a field is missing or has the wrong type.
    """
    if kind not in kinds:
        raise UsageError(f"action: found {kind[:40]!r}, expected one of {', '.join(kinds)}")
    found = {name: fields[name] for name in FIELDS[kind]}
    category = _whole(found.get("category", found.get("into", NO_CATEGORY)))
    groups = []
    if "images" in found:
        groups.append(Group(category=category, rows=find_rows(found["images"])))
    for group in found.get("groups", found.get("parts", [])):
        name = checked_name(group["name"]) if kind == "split" else ""
        rows = find_rows(group["images"])
        groups.append(Group(category=_whole(group["category"]), rows=rows, name=name))
    actions = [
        parse_action(each["action"], each, find_rows, BATCHED) for each in found.get("actions", [])
    ]
    return Action(
        kind=kind,
        groups=tuple(groups),
        actions=tuple(actions),
        category=category,
        categories=tuple(map(_whole, found.get("categories", []))),
        name=checked_name(found["name"]) if "name" in found else "",
        text=_checked_text("note", found.get("text", ""), 0, MAX_NOTE),
        of=_whole(found.get("of", 0)),
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
