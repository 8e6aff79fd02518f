"""What a person can do to a run: the actions, as they are in memory and as lines of `review.jsonl`.

Every line of the log is one JSON object with `seq` (0, 1, 2, …), `action`, `by` (who) and `at`
(when, ISO 8601, UTC), and `window`, the page it was done on, where it was on one. The first line,
seq 0, says which run it is about. Images are named by their paths, categories by their ids.

    start    n_images, answer (checksum of paths, categories and who is in them), categories:
             a list of {category, name, is_novel, exemplars}: the categories as the run found them
    confirm  groups: [{category, images}]    these images belong to that category, in which they are
    reject   groups: [{category, images}]    they do not; now they have no category (-1)
    flag     groups: [{category, images}]    somebody looked and is unsure; category -1 for those
                                             without one
    assign   category, images                they belong to that category instead of their own;
                                             `via` says how they were found where not one by one
    create   category, name, images          a new category (its id is new), with these images
    rename   category, name                  a name that no other category has
    merge    categories, into                the images of `categories` go to `into`; those end
    split    category, parts: [{category, images, name}]   these images leave it for new categories
    distinct categories                      these two are not the same
    undo     of                              the action with that seq no longer counts
    redo     of                              an undone action counts again

An image has a status: predicted (nobody decided), confirmed, rejected, moved (by assign and create)
or flagged. A merge or a split moves images and keeps their status. `fields_of` and `action_of`
translate; rows are the numbers of images.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError

NO_CATEGORY = -1
"""The category of an image that has none."""

MAX_NAME = 200
"""Characters of a name."""

JOINERS = dict.fromkeys((0x200C, 0x200D))
"""Characters without width that join or part letters: Persian and Hindi cannot do without them."""

UNREADABLE = "a field is missing or of another kind"
"""What is said of a line whose fields are not those of its action."""

VIAS = ("grow",)
"""Ways to find many images at once, of which a person has seen some."""

STATUSES = ("predicted", "confirmed", "rejected", "moved", "flagged")
PREDICTED, CONFIRMED, REJECTED, MOVED, FLAGGED = range(len(STATUSES))

FIELDS = {
    "confirm": ("groups",),
    "reject": ("groups",),
    "flag": ("groups",),
    "assign": ("category", "via", "images"),
    "create": ("category", "name", "images"),
    "rename": ("category", "name"),
    "merge": ("categories", "into"),
    "split": ("category", "parts"),
    "distinct": ("categories",),
    "undo": ("of",),
    "redo": ("of",),
}
"""The fields of each kind of action, in the order in which they are written."""

KINDS = tuple(FIELDS)


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Group:
    """Some images and a category: of a `split` a new one with its name, else the one they are
    in."""

    category: int
    rows: Ints
    name: str = ""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Action:
    """One action; which fields it uses is in the module's table."""

    kind: str
    groups: tuple[Group, ...] = ()
    """The groups of confirm, reject and flag, the parts of a split, the images of assign and
    create."""
    category: int = NO_CATEGORY
    """The one it is about; of a merge the one that stays."""
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


def assign(category: int, rows: Ints, via: str = "") -> Action:
    """Put images into a category."""
    group = Group(category=category, rows=rows)
    return Action(kind="assign", category=category, groups=(group,), via=via)


def create(category: int, name: str, rows: Ints) -> Action:
    """Make a category of some images, none perhaps."""
    group = Group(category=category, rows=rows)
    return Action(kind="create", category=category, name=name, groups=(group,))


def checked_name(name: object) -> str:
    """A name fit for a category: without space around it, its letters composed; or an error."""
    return composed(_fit_name(name))


def _fit_name(name: object) -> str:
    text = name.strip() if isinstance(name, str) else ""
    letters = text.translate(JOINERS)
    if not letters or len(text) > MAX_NAME or not letters.isprintable():
        raise UsageError(
            f"name: found {str(name)[:40]!r}, expected 1 to {MAX_NAME} printable characters"
        )
    return text


def checked_via(via: object) -> str:
    """How images were found, or an error."""
    if via not in ("", *VIAS):
        raise UsageError(f"via: found {str(via)[:40]!r}, expected {', '.join(VIAS)}, or nothing")
    return str(via)


def composed(name: str) -> str:
    """A name with letters and accents as one character: what looks the same is the same."""
    return unicodedata.normalize("NFC", name)


def fields_of(action: Action, paths: Sequence[str]) -> dict[str, object]:
    """The fields of an action's line; `paths` are those of all images."""

    def listed(rows: Ints) -> list[str]:
        return [paths[row] for row in rows.tolist()]

    groups = [{"category": one.category, "images": listed(one.rows)} for one in action.groups]
    fields: dict[str, object] = {
        "category": action.category,
        "into": action.category,
        "categories": list(action.categories),
        "name": action.name,
        "via": action.via,
        "of": action.of,
        "groups": groups,
        "parts": [
            {**group, "name": part.name} for group, part in zip(groups, action.groups, strict=True)
        ],
        "images": groups[0]["images"] if groups else [],
    }
    written = {name: fields[name] for name in FIELDS[action.kind]}
    if not action.via:
        written.pop("via", None)
    return written


def action_of(
    kind: str, line: Mapping[str, object], rows_of: Callable[[Iterable[object]], Ints]
) -> Action:
    """The action of a line; `rows_of` finds images.

    KeyError, TypeError or ValueError where fields do not fit.
    """
    if kind not in FIELDS:
        raise UsageError(f"action: found {kind[:40]!r}, expected one of {', '.join(KINDS)}")
    fields = FIELDS[kind]
    found = {name: line[name] for name in fields if name != "via"}
    category = NO_CATEGORY
    if "category" in found or "into" in found:
        category = _whole(found.get("category", found.get("into")))
    groups: tuple[Group, ...] = ()
    if "images" in found:
        groups = (Group(category=category, rows=rows_of(_listed(found["images"]))),)
    if "groups" in found:
        groups = tuple(_group(one, rows_of) for one in _listed(found["groups"]))
    if "parts" in found:
        groups = tuple(_group(one, rows_of, is_part=True) for one in _listed(found["parts"]))
    return Action(
        kind=kind,
        groups=groups,
        category=category,
        categories=tuple(_whole(one) for one in _listed(found.get("categories", []))),
        name=_fit_name(found["name"]) if "name" in found else "",
        via=checked_via(line.get("via", "")) if "via" in fields else "",
        of=_whole(found.get("of", 0)),
    )


def _group(
    plain: object, rows_of: Callable[[Iterable[object]], Ints], *, is_part: bool = False
) -> Group:
    if not isinstance(plain, dict):
        raise TypeError(f"{plain!r} is not an object")
    name = _fit_name(plain["name"]) if is_part else ""
    rows = rows_of(_listed(plain["images"]))
    return Group(category=_whole(plain["category"]), rows=rows, name=name)


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value
