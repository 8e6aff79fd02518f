"""Validation of what the page sends: row numbers and actions."""

import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import UNREADABLE, Action, parse_action
from shoal.review.effects import STATUS_OF
from shoal.review.state import State
from shoal.review.verbs import decision

MAX_ROWS = 256
"""Maximum number of images per request."""

SEPARATORS = re.compile(r"[\s_-]+")


def row_numbers(text: str, n_images: int) -> list[int]:
    """Return the rows of a query such as '3,5,8'."""
    rows = [number(part) for part in text.split(",")] if text else []
    if len(rows) > MAX_ROWS or not all(0 <= row < n_images for row in rows):
        raise UsageError(f"rows: expected up to {MAX_ROWS} numbers from 0 to {n_images - 1}")
    return rows


def number(text: str) -> int:
    """Return the integer of a query."""
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"found {text[:20]!r}, expected an integer") from error


def requested_action(state: State, request: Mapping[str, Any], who: str) -> Action:
    """Return the action that the page requests.

    An undo or redo without `of` is of the last action of the person `who`.

    A request has the fields of a log line, with rows instead of paths. Groups and the ids of new
    categories are added here, because they depend on the current state.
    """
    kind = str(request.get("action"))
    if kind in ("undo", "redo") and "of" not in request:
        return state.last_action(kind, who)
    fields = dict(request)
    try:
        if kind in STATUS_OF:
            return decision(state, kind, _rows(state, request["images"]))
        if kind == "create":
            fields["category"] = state.next_id
        if kind == "split":
            fields["parts"] = [
                {**part, "category": number}
                for number, part in enumerate(request["parts"], start=state.next_id)
            ]
        action = parse_action(kind, fields, partial(_rows, state))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{kind[:40]}: {UNREADABLE} ({error})") from error
    _check_names(state, action)
    return action


def _check_names(state: State, action: Action) -> None:
    """Refuse new names that differ from those of other categories, or from each other, only in
    case, spaces, hyphens or underscores; the page has the same rule."""
    taken = {
        _folded(record.name): record.name
        for number, record in state.categories.items()
        if action.kind != "rename" or number != action.category
    }
    for name in filter(None, [action.name, *(group.name for group in action.groups)]):
        existing = taken.setdefault(_folded(name), name)
        if existing != name:
            raise UsageError(f"{name}: differs too little from {existing}; choose another name")


def _folded(name: str) -> str:
    return SEPARATORS.sub(" ", unicodedata.normalize("NFKC", name).casefold()).strip()


def _rows(state: State, images: object) -> Ints:
    """Return the rows of a list of numbers."""
    n_images = len(state)
    if not isinstance(images, list) or not all(
        type(row) is int and 0 <= row < n_images for row in images
    ):
        raise UsageError(f"images: expected numbers from 0 to {n_images - 1}")
    return np.array(images, dtype=np.int64)
