"""What the page asks for, checked: numbers that are rows, actions that are well formed."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import (
    KINDS,
    NO_CATEGORY,
    UNREADABLE,
    Action,
    Group,
    checked_name,
    checked_via,
)
from shoal.review.history import Window
from shoal.review.state import Conflict, State
from shoal.review.verbs import grouped
from shoal.server.packing import unpack_rows

MAX_ROWS = 256
"""Images that are asked for at once."""

NUMBER = re.compile(r"-?[0-9]{1,11}")

MAX_PARTS = 100

MAX_WINDOW = 40
"""Characters of what a page calls itself."""


def row_numbers(text: str, n_images: int) -> list[int]:
    """Rows out of a query, '3,5,8'."""
    rows = [number(part) for part in text.split(",")] if text else []
    if len(rows) > MAX_ROWS or not all(0 <= row < n_images for row in rows):
        raise UsageError(f"rows: expected up to {MAX_ROWS} numbers from 0 to {n_images - 1}")
    return rows


def number(text: str | None) -> int:
    """A whole number out of a query."""
    if text is None or not NUMBER.fullmatch(text):
        raise UsageError(f"found {str(text)[:20]!r}, expected a whole number")
    return int(text)


def window_of(name: object, opened: object) -> Window | None:
    """The page that asks; None where it does not say which it is."""
    if not name:
        return None
    is_name = isinstance(name, str) and name.isalnum() and len(name) <= MAX_WINDOW
    if not is_name or type(opened) is not int:
        raise UsageError(
            f"window: found {str(name)[:20]!r}, expected letters, and a number in opened"
        )
    return Window(str(name), opened)


def action_of(state: State, asked: Mapping[str, object]) -> Action:
    """The action that the page asks for, on the state as it is; images are rows."""
    kind = asked.get("action")
    if kind not in KINDS:
        raise UsageError(f"action: found {str(kind)[:40]!r}, expected one of {', '.join(KINDS)}")
    try:
        return _action(state, kind, asked)
    except (KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{kind}: {UNREADABLE} ({error})") from error


def _action(state: State, kind: str, asked: Mapping[str, object]) -> Action:
    if kind in ("confirm", "reject", "flag"):
        rows = _rows(state, asked["rows"])
        outside = rows[state.images.category[rows] == NO_CATEGORY]
        if kind != "flag" and len(outside):
            since = state.in_words(int(state.images.version[outside[0]]))
            raise Conflict(f"{kind}: an image has no category since {since}; move it to one")
        return Action(kind=kind, groups=grouped(state, rows))
    if kind == "assign":
        category = _whole(asked["category"])
        group = Group(category=category, rows=_rows(state, asked["rows"]))
        via = checked_via(asked.get("via", ""))
        return Action(kind=kind, category=category, groups=(group,), via=via)
    if kind == "create":
        group = Group(category=state.next_id, rows=_rows(state, asked["rows"], at_least=0))
        name = checked_name(asked["name"])
        return Action(kind=kind, category=state.next_id, name=name, groups=(group,))
    if kind == "rename":
        category = _whole(asked["category"])
        return Action(kind=kind, category=category, name=checked_name(asked["name"]))
    if kind == "merge":
        others = tuple(map(_whole, _listed(asked["categories"], MAX_PARTS)))
        return Action(kind=kind, categories=others, category=_whole(asked["into"]))
    if kind == "distinct":
        return Action(kind=kind, categories=tuple(map(_whole, _listed(asked["categories"], 2))))
    if kind == "split":
        parts: list[Group] = []
        for part in _listed(asked["parts"], MAX_PARTS):
            id_ = state.next_id + len(parts)
            rows = _rows(state, part["rows"])
            parts.append(Group(category=id_, rows=rows, name=checked_name(part["name"])))
        return Action(kind=kind, category=_whole(asked["category"]), groups=tuple(parts))
    return Action(kind=kind, of=_whole(asked["of"]))


def _rows(state: State, asked: object, *, at_least: int = 1) -> Ints:
    """Images, as a list of their numbers or as a text of bits."""
    n_images = len(state)
    if isinstance(asked, str):
        rows = unpack_rows(asked, n_images)
    else:
        listed = _listed(asked, n_images)
        if not all(type(row) is int and 0 <= row < n_images for row in listed):
            raise UsageError(f"rows: expected numbers of images from 0 to {n_images - 1}")
        rows = np.array(listed, dtype=np.int64)
    if len(rows) < at_least:
        raise UsageError(f"rows: found {len(rows)}, expected {at_least} or more")
    return rows


def _listed(asked: object, most: int) -> list[Any]:
    if not isinstance(asked, list) or len(asked) > most:
        raise UsageError(f"expected a list of at most {most:,}")
    return asked


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:20]!r} is not a whole number")
    return value
