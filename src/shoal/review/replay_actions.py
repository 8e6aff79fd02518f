"""What an action of an old review is on another answer: on the categories that are there, and the images in them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import (
    NO_CATEGORY,
    PREDICTED,
    Action,
    Group,
    checked_name,
    checked_via,
)
from shoal.review.effects import is_numbered_part
from shoal.review.replay_categories import Replay
from shoal.review.verbs import grouped
from shoal.text import shown
from shoal.words import count


def actions_here(replay: Replay, line: Mapping[str, Any]) -> Iterator[Action]:
    """What an old action is in the new state."""
    kind = line["action"]
    state = replay.state
    if kind == "flag":  # of an image, wherever it is
        groups = grouped(
            state, replay.rows([path for group in line["groups"] for path in group["images"]])
        )
        if groups:
            yield Action(kind=kind, groups=groups)
    elif kind in ("confirm", "reject"):
        for group in line["groups"]:
            yield from _decided(replay, kind, group)
    elif kind == "assign":
        target = replay.category(line["category"])
        rows = replay.rows(line["images"])
        if len(rows):
            how = checked_via(line.get("via", ""))
            yield Action(
                kind=kind, category=target, groups=(Group(category=target, rows=rows),), via=how
            )
    elif kind == "create":
        yield from _new(replay, line["category"], line["name"], replay.rows(line["images"]))
    elif kind == "rename":
        target = replay.renamed(line["category"], line["name"])
        is_done = line["category"] in replay.kept or state.records[target].name == line["name"]
        if not is_done:  # another run may know it by this name
            yield Action(kind=kind, category=target, name=checked_name(line["name"]))
    elif kind == "merge":
        target = replay.current_category(line["into"])
        others = tuple(
            sorted(
                {
                    replay.category(old)
                    for old in line["categories"]
                    if replay.current_category(old) != target
                }
            )
        )
        if others:
            yield Action(kind=kind, categories=others, category=replay.category(line["into"]))
        else:  # they are one here
            replay.within.pop(line["into"], None)
            replay.ids[line["into"]] = target
    elif kind == "distinct":
        pair = tuple(sorted({replay.category(old) for old in line["categories"]}))
        if len(pair) < 2:
            raise UsageError(f"they are one here, {state.records[pair[0]].name}")
        if pair not in state.distinct:
            yield Action(kind=kind, categories=pair)
    elif kind == "split":
        for part in line["parts"]:
            yield from _part(replay, line["category"], part)


def _decided(replay: Replay, kind: str, group: Mapping[str, Any]) -> Iterator[Action]:
    """Confirm images, which may have to be put into the category first, or reject those that are in it.

    A rejection says nothing against another category. After a discovery that has heeded it, that is how it should be.
    """
    rows = replay.rows(group["images"])
    state = replay.state
    target = replay.category(group["category"])
    is_elsewhere = state.images.category[rows] != target
    if kind == "confirm" and is_elsewhere.any():
        yield Action(
            kind="assign",
            category=target,
            groups=(Group(category=target, rows=rows[is_elsewhere]),),
        )
    if kind == "reject":
        if not replay.kept:
            replay.elsewhere = [
                shown(state.answer.paths[row]) for row in rows[is_elsewhere].tolist()
            ]
        rows = rows[~is_elsewhere]
    if len(rows):
        yield Action(kind=kind, groups=(Group(category=target, rows=rows),))


def _new(replay: Replay, old: int, name: str, rows: Ints) -> Iterator[Action]:
    """A new category, or the one that is it by now, or has its name."""
    is_kept = old in replay.kept
    there = replay.category(old) if is_kept else replay.called(name)
    if there is not None:
        replay.ids[old] = there
        if len(rows):
            yield Action(kind="assign", category=there, groups=(Group(category=there, rows=rows),))
        elif not is_kept:
            raise UsageError(f"a category {name} is there already")
        return
    new = replay.state.next_id
    replay.ids[old] = new
    yield Action(
        kind="create",
        category=new,
        name=replay.free_name(name),
        groups=(Group(category=new, rows=rows),),
    )


def _part(replay: Replay, old_source: int, part: Mapping[str, Any]) -> Iterator[Action]:
    """A part of a split, which decides about no single image: what the new answer has put elsewhere stays there.

    Where the answer has the category already, only images that somebody decided on follow the split, as they are. A
    discovery that knew of the part and found no such category has it no more, which it says with what has changed.
    """
    state = replay.state
    old = part["category"]
    rows = replay.rows(part["images"])
    is_here = old_source in replay.ids or old_source in replay.within
    source = replay.current_category(old_source) if is_here else NO_CATEGORY
    name = _name_here(replay, old_source, source, checked_name(part["name"]))
    replay.lost[old] = name
    is_gone = old_source in replay.kept and old not in replay.kept
    there = replay.category(old) if old in replay.kept else None if is_gone else replay.called(name)
    if there is None and not is_gone and (there := _found_again(replay, rows, source)) is not None:
        yield Action(kind="rename", category=there, name=name)
    leaving = (
        rows[state.images.category[rows] == source]
        if source not in (NO_CATEGORY, there)
        else rows[:0]
    )
    if is_gone:
        leaving = rows[:0]
    if there is not None:
        replay.ids[old] = there
        is_there = state.images.category[rows] == there
        leaving = leaving[state.images.status[leaving] != PREDICTED]
        _note_staying(replay, name, len(rows), int(is_there.sum()) + len(leaving))
        if len(leaving):
            new = Group(category=state.next_id, rows=leaving, name=state.free_name(name))
            yield Action(kind="split", category=source, groups=(new,))
            yield Action(kind="merge", categories=(new.category,), category=there)
        return
    _note_staying(replay, name, len(rows), len(leaving))
    if len(leaving):
        new = Group(category=state.next_id, rows=leaving, name=replay.free_name(name))
        replay.ids[old] = new.category
        yield Action(kind="split", category=source, groups=(new,))
    elif old in replay.decided:
        replay.to_make[old] = name


def _name_here(replay: Replay, old_source: int, source: int, name: str) -> str:
    """The name of a part; one that only numbers the parts of its category goes by what that one is called here."""
    before = replay.lost.get(old_source, "")
    is_numbered = source != NO_CATEGORY and is_numbered_part(name, before)
    return replay.state.records[source].name + name.removeprefix(before) if is_numbered else name


def _note_staying(replay: Replay, name: str, n_images: int, n_following: int) -> None:
    """Say how many images do not follow a split, of an answer that has not heeded it."""
    if n_following < n_images and not replay.kept:
        n_staying = f"{n_images - n_following:,} of {count(n_images, 'image')}"
        replay.notes.append(
            f"{n_staying} of {shown(name)} not split off, because this run has put them otherwise"
        )


def _found_again(replay: Replay, rows: Ints, source: int) -> int | None:
    """The novel category that is no other one and has mostly these images, which the new answer has parted itself."""
    state = replay.state
    votes = Counter(state.images.category[rows].tolist())
    best, n_votes = votes.most_common(1)[0] if votes else (NO_CATEGORY, 0)
    if best in (NO_CATEGORY, source, *replay.ids.values()) or not state.records[best].is_novel:
        return None
    return best if 2 * n_votes > max(len(rows), len(state.members(best))) else None
