"""What a person can do to a run: the actions, as they are in memory and as lines of `review.jsonl`.

Every line of the log is one JSON object with `seq` (0, 1, 2, …), `action`, `by` (who) and `at` (when, ISO 8601, UTC),
and `window`, the page it was done on, where it was on one. The first line, seq 0, says which run it is about. Images
are named by their paths, categories by their ids.

    start    n_images, answer (checksum of paths, categories and who is in them), categories: a list of
             {category, name, is_novel, exemplars}: the categories as the run found them
    confirm  groups: [{category, images}]       these images belong to that category, in which they are
    reject   groups: [{category, images}]       they do not; now they have no category (-1)
    flag     groups: [{category, images}]       somebody looked and is unsure; category -1 for those without one
    assign   category, images                   they belong to that category instead of their own; `via` says how they
                                                were found where not one by one: grow
    create   category, name, images             a new category (its id is new), with these images, none perhaps
    rename   category, name                     a name that no other category has
    merge    categories, into                   the images of `categories` go to `into`; those categories end
    split    category, parts: [{category, name, images}]   these images leave it for new categories
    distinct categories                         these two are not the same, so their merge is not suggested
    undo     of                                 the action with that seq no longer counts
    redo     of                                 an undone action counts again

An image has a status: predicted (nobody decided), confirmed, rejected, moved (by assign and create) or flagged. A
merge or a split moves images and keeps their status. `fields_of` and `action_of` translate; rows are the numbers
of images.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError

NO_CATEGORY = -1
"""The category of an image that has none."""

MAX_NAME = 200
"""Characters of a name."""

JOINERS = dict.fromkeys((0x200C, 0x200D))
"""Characters without width that join or part letters: Persian, Hindi and others cannot be written without them."""

UNREADABLE = "a field is missing or of another kind"
"""What is said of a line whose fields are not those of its action."""

VIAS = ("grow",)
"""Ways to find many images at once, of which a person has seen some."""

STATUSES = ("predicted", "confirmed", "rejected", "moved", "flagged")
PREDICTED, CONFIRMED, REJECTED, MOVED, FLAGGED = range(len(STATUSES))

KINDS = (
    "confirm",
    "reject",
    "flag",
    "assign",
    "create",
    "rename",
    "merge",
    "split",
    "distinct",
    "undo",
    "redo",
)


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Group:
    """Some images and a category: of a `split` a new one with its name, otherwise the one they are in."""

    category: int
    rows: Ints
    name: str = ""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Action:
    """One action; which fields it uses is in the module's table."""

    kind: str
    groups: tuple[Group, ...] = ()
    """The groups of confirm, reject and flag, the parts of a split, the images of assign and create."""
    category: int = NO_CATEGORY
    categories: tuple[int, ...] = ()
    """Those of a merge and of distinct."""
    name: str = ""
    via: str = ""
    """One of `VIAS`, or nothing."""
    of: int = 0

    @property
    def rows(self) -> Ints:
        """The images it names."""
        return np.concatenate([np.zeros(0, np.int64), *(group.rows for group in self.groups)])


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Entry:
    """An action in the log."""

    seq: int
    by: str
    at: str
    action: Action
    window: str = ""
    """The page of that person; empty where it was done without one."""


def checked_name(name: Any) -> str:
    """A name fit for a category, as it is written down: without space around it, its letters composed; or an error."""
    return composed(_fit_name(name))


def _fit_name(name: Any) -> str:
    text = name.strip() if isinstance(name, str) else ""
    letters = text.translate(JOINERS)
    if not letters or len(text) > MAX_NAME or not letters.isprintable():
        raise UsageError(
            f"name: found {str(name)[:40]!r}, expected 1 to {MAX_NAME} printable characters"
        )
    return text


def checked_via(via: Any) -> str:
    """How images were found, or an error."""
    if via not in ("", *VIAS):
        raise UsageError(f"via: found {str(via)[:40]!r}, expected {', '.join(VIAS)}, or nothing")
    return str(via)


def composed(name: str) -> str:
    """A name with every letter and its accents as one character, so that what looks the same is the same."""
    return unicodedata.normalize("NFC", name)


def fields_of(action: Action, listed: Callable[[Ints], Any]) -> dict[str, Any]:
    """The fields of an action's line; `listed` gives the paths of rows."""
    if action.kind in ("assign", "create"):
        how: dict[str, Any] = {"name": action.name} if action.kind == "create" else {}
        how |= {"via": action.via} if action.via else {}
        return {"category": action.category, **how, "images": listed(action.rows)}
    groups: list[dict[str, Any]] = [
        {"category": group.category, "images": listed(group.rows)} for group in action.groups
    ]
    if action.kind in ("confirm", "reject", "flag"):
        return {"groups": groups}
    if action.kind == "rename":
        return {"category": action.category, "name": action.name}
    if action.kind == "merge":
        return {"categories": list(action.categories), "into": action.category}
    if action.kind == "distinct":
        return {"categories": list(action.categories)}
    if action.kind == "split":
        named = [
            {**part, "name": group.name} for part, group in zip(groups, action.groups, strict=True)
        ]
        return {"category": action.category, "parts": named}
    return {"of": action.of}


def action_of(
    kind: str, fields: Mapping[str, Any], rows_of: Callable[[Sequence[Any]], Ints]
) -> Action:
    """The action of a line; `rows_of` finds images. KeyError, TypeError or ValueError where fields do not fit."""
    if kind in ("confirm", "reject", "flag"):
        return Action(kind=kind, groups=tuple(_group(one, rows_of) for one in fields["groups"]))
    if kind in ("assign", "create"):
        category = _whole(fields["category"])
        group = Group(category=category, rows=rows_of(fields["images"]))
        if kind == "assign":
            return Action(
                kind=kind,
                groups=(group,),
                category=category,
                via=checked_via(fields.get("via", "")),
            )
        return Action(kind=kind, groups=(group,), category=category, name=_fit_name(fields["name"]))
    if kind == "rename":
        return Action(
            kind=kind, category=_whole(fields["category"]), name=_fit_name(fields["name"])
        )
    if kind == "merge":
        others = tuple(map(_whole, fields["categories"]))
        return Action(kind=kind, categories=others, category=_whole(fields["into"]))
    if kind == "distinct":
        return Action(kind=kind, categories=tuple(map(_whole, fields["categories"])))
    if kind == "split":
        parts = tuple(_group(part, rows_of, _fit_name(part["name"])) for part in fields["parts"])
        return Action(kind=kind, category=_whole(fields["category"]), groups=parts)
    if kind in ("undo", "redo"):
        return Action(kind=kind, of=_whole(fields["of"]))
    raise UsageError(f"action: found {str(kind)[:40]!r}, expected one of {', '.join(KINDS)}")


def _group(
    plain: Mapping[str, Any], rows_of: Callable[[Sequence[Any]], Ints], name: str = ""
) -> Group:
    return Group(category=_whole(plain["category"]), rows=rows_of(plain["images"]), name=name)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value
