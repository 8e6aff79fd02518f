"""The state is the replayed log: what each action does, when it is refused, and that it can be
undone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.review import verbs
from shoal.review.actions import FIELDS, STATUSES, Action, Group, line_of
from shoal.review.review import Review, now
from shoal.review.state import State
from shoal.runs import NO_CATEGORY, Run
from small_runs import write_small


def look(state: State) -> dict[str, object]:
    """Return everything that a reviewer could see."""
    return {
        "categories": {category: record.name for category, record in state.categories.items()},
        "in": state.category.tolist(),
        "status": [STATUSES[status] for status in state.status],
        "rejected": rejected(state),
        "decided": state.decided.tolist(),
        "distinct": state.distinct,
        "notes": {row: text for row, text in state.notes.items() if text},
        "noted": {category: record.note for category, record in state.categories.items()},
    }


def rejected(state: State) -> dict[int, frozenset[int]]:
    """Return by row the categories that images were rejected from."""
    numbers = enumerate(state.rejected)
    return {row: state.rejections[number] for row, number in numbers if number}


def decided(kind: str, category: int, *rows: int) -> Action:
    return Action(
        kind=kind, groups=(Group(category=category, rows=np.array(rows, dtype=np.int64)),)
    )


def renamed(category: int, name: str) -> Action:
    return Action(kind="rename", category=category, name=name)


def merged(into: int, *others: int) -> Action:
    return Action(kind="merge", category=into, categories=others)


def batch(*actions: Action) -> Action:
    return Action(kind="batch", actions=actions)


def note(text: str, *rows: int, category: int = NO_CATEGORY) -> Action:
    group = Group(category=category, rows=np.array(rows, dtype=np.int64))
    return Action(kind="note", category=category, groups=(group,), text=text)


def test_confirm_takes_what_nobody_has_decided(review: Review) -> None:
    review.act(verbs.decide, "flag", None, ["04.png"])
    review.act(verbs.move, ["06.png"], "heron")
    review.act(verbs.decide, "confirm", "heron", None)
    assert look(review.state)["status"][3:7] == ["confirmed", "flagged", "confirmed", "moved"]
    with pytest.raises(UsageError):
        review.act(verbs.decide, "confirm", "heron", None)


def test_a_rejected_image_has_no_category_and_is_remembered_not_to_be_in_its_old_one(
    review: Review,
) -> None:
    review.act(verbs.decide, "reject", None, ["06.png", "00.png"])
    assert review.state.category[[6, 0]].tolist() == [NO_CATEGORY] * 2
    assert rejected(review.state) == {0: {0}, 6: {2}}
    with pytest.raises(UsageError):
        review.act(verbs.decide, "confirm", None, ["06.png"])
    review.act(verbs.move, ["06.png"], "novel-001")
    assert rejected(review.state) == {0: {0}}
    assert review.state.category.tolist() == [-1, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_refused_image_stays_in_its_category_and_is_remembered_not_to_be_in_the_other(
    review: Review,
) -> None:
    def refuse(row: int) -> Action:
        group = Group(category=3, rows=np.array([row]))
        return Action(kind="refuse", category=3, groups=(group,))

    before = look(review.state)
    review.act(lambda _: refuse(6))
    assert look(review.state) == {**before, "rejected": {6: {3}}}
    with pytest.raises(UsageError):
        review.act(lambda _: refuse(9))  # 09.png is in category 3
    assert look(Review(review.run).state) == look(review.state)
    review.act(verbs.move, ["06.png"], 3)
    assert rejected(review.state) == {}


def test_rename_refuses_a_name_that_is_taken(review: Review) -> None:
    review.act(verbs.rename, "novel-001", "tern")
    assert review.state.categories[2].name == "tern"
    assert review.state.categories[2].is_named
    assert review.state.categories[2].is_novel
    with pytest.raises(UsageError):
        review.act(verbs.rename, "tern", "gull")
    with pytest.raises(UsageError):
        review.act(verbs.rename, "novel-001", "x")


def test_a_new_name_differs_from_others_in_more_than_case_but_an_older_log_opens(
    review: Review,
) -> None:
    review.act(verbs.rename, 2, "Bird of paradise")
    for make, *what in (
        (verbs.move, ["00.png"], "bird of paradise"),
        (verbs.rename, 3, "BIRD OF PARADISE"),
        (verbs.split, 3, {"bird-of_paradise": ["09.png"]}),
    ):
        with pytest.raises(UsageError, match="another category is called Bird of paradise"):
            review.act(make, *what)
    review.act(verbs.rename, 2, "bird of paradise")
    action = Action(kind="rename", category=3, name="BIRD OF PARADISE", seq=3, by="ann", at=now())
    review.log.append(line_of(action, review.state.encoded_paths))
    older = Review(review.run)
    older.undo(by="ann")
    older.redo(by="ann")
    assert {older.state.name(2), older.state.name(3)} == {"bird of paradise", "BIRD OF PARADISE"}


def test_names_have_the_joiners_of_their_script_and_one_way_to_write_an_accent(
    review: Review,
) -> None:
    review.act(verbs.rename, 2, "می\u200cخواهم")
    review.act(verbs.rename, 3, "Cafe\u0301")
    assert [review.state.categories[number].name for number in (2, 3)] == ["می\u200cخواهم", "Café"]
    review.act(verbs.move, ["00.png"], "Cafe\u0301")
    assert review.state.category[0] == 3
    with pytest.raises(UsageError):
        review.act(verbs.rename, 0, "Cafe\u0301")


def test_categories_and_parts_are_taken_as_numbers_of_numpy_too(review: Review) -> None:
    review.act(verbs.rename, np.int64(2), "tern")
    review.act(verbs.move, ["00.png"], np.int32(2))
    review.act(verbs.split, np.int64(3), np.int64(2))
    review.act(verbs.merge, np.array([1, 2]), np.uint8(2))
    assert {number: record.name for number, record in review.state.categories.items()} == {
        0: "gull",
        2: "tern",
        3: "novel-002",
        4: "novel-002 (2)",
    }
    for wrong in (True, 2.0, 9):
        with pytest.raises(UsageError):
            review.act(verbs.rename, wrong, "x")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        review.act(verbs.split, 3, "two")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "   ", "\u200d", "a\nb", "a\u202eb", "x" * 201, 3])
def test_names_that_nobody_could_read_are_refused(review: Review, name: object) -> None:
    with pytest.raises(UsageError):
        review.act(verbs.rename, 2, name)  # type: ignore[arg-type]


def test_merged_categories_end_and_keep_what_was_decided(review: Review) -> None:
    review.act(verbs.decide, "confirm", None, ["09.png"])
    review.act(verbs.merge, ["novel-001", "novel-002", "heron"], "heron")
    assert review.state.members(1).tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert look(review.state)["status"][9] == "confirmed"
    assert set(review.state.categories) == {0, 1}
    with pytest.raises(UsageError):
        review.act(lambda _: decided("confirm", 2, 6))
    with pytest.raises(UsageError):
        review.act(verbs.merge, ["gull"], "gull")


def test_a_split_without_a_part_or_an_image_is_refused(review: Review) -> None:
    with pytest.raises(UsageError):
        review.act(verbs.split, "gull", {})
    with pytest.raises(UsageError):
        review.act(verbs.move, [], "tern")
    with pytest.raises(UsageError):
        review.act(verbs.split, "gull", {"tern": [], "skua": ["00.png"]})
    assert review.state.seq == 0


def test_one_path_alone_is_one_image(review: Review) -> None:
    review.act(verbs.move, "00.png", "heron")
    review.act(verbs.decide, "flag", None, "03.png")
    review.act(verbs.split, "novel-001", {"tern": "06.png"})
    assert review.state.members(1).tolist() == [0, 3, 4, 5]
    assert review.state.members(4).tolist() == [6]


def test_a_person_undoes_their_own_last_action_and_redoes_it(review: Review) -> None:
    review.act(verbs.rename, "novel-001", "tern", by="ann")
    review.act(verbs.rename, "novel-002", "skua", by="bob")
    review.undo(by="ann")
    assert [r.name for r in review.state.categories.values()] == [
        "gull",
        "heron",
        "novel-001",
        "skua",
    ]
    with pytest.raises(UsageError):
        review.undo(by="ann")
    with pytest.raises(UsageError):
        review.redo(by="bob")
    review.redo(by="ann")
    assert review.state.categories[2].name == "tern"
    review.act(verbs.decide, "confirm", "gull", None, by="ann")
    review.undo(by="ann")
    review.undo(by="ann")
    review.act(verbs.decide, "confirm", "heron", None, by="ann")
    with pytest.raises(UsageError):
        review.redo(by="ann")


def test_notes_are_kept_merged_and_undone(review: Review) -> None:
    review.act(lambda _: note("#blurred", 3, 4), by="ann")
    review.act(lambda _: note("ask #anna", category=1), by="ann")
    review.act(lambda _: note("two ages", category=2), by="bob")
    review.act(verbs.merge, [1, 2], by="bob")
    review.act(lambda _: note("", 4), by="bob")
    for state in (review.state, Review(review.run).state):
        assert state.notes == {3: "#blurred", 4: ""}
        assert state.categories[1].note == "ask #anna two ages"
    with pytest.raises(UsageError):  # bob has seen neither note
        review.act(lambda _: note("sharp", 3), by="bob", base=0)
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="undo", of=1), by="ann")  # bob has changed one of them
    for _ in range(3):
        review.undo(by="bob")
    for _ in range(2):
        review.undo(by="ann")
    assert not any(review.state.notes.values())
    assert not any(record.note for record in review.state.records.values())


@pytest.mark.parametrize("action", [note("both", 3, category=1), note("neither"), note("", 3, 3)])
def test_a_note_is_on_images_or_on_a_category(review: Review, action: Action) -> None:
    with pytest.raises(UsageError):
        review.act(lambda _: action)


def test_what_somebody_else_has_built_on_is_not_undone(review: Review) -> None:
    review.act(verbs.move, ["06.png"], "tern", by="ann")
    review.act(verbs.move, ["09.png"], "tern", by="bob")
    with pytest.raises(UsageError):
        review.undo(by="ann")
    review.undo(by="bob")
    review.undo(by="ann")
    assert review.state.find("tern") is None
    review.act(verbs.move, ["06.png"], "gull", by="bob")
    with pytest.raises(UsageError):
        review.redo(by="ann")


def test_an_action_chosen_on_an_old_view_is_refused_where_it_matters_and_only_there(
    review: Review,
) -> None:
    review.act(verbs.decide, "reject", None, ["06.png"], by="bob")
    with pytest.raises(UsageError):
        review.act(lambda _: decided("confirm", 2, 6, 7), by="ann", base=0)
    review.act(lambda _: decided("confirm", 2, 7), by="ann", base=0)
    group = Group(category=0, rows=np.array([7]))
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="assign", category=0, groups=(group,)), by="bob", base=1)
    review.act(verbs.rename, "heron", "egret", by="ann")
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="rename", category=1, name="bittern"), by="bob", base=2)
    review.act(lambda _: Action(kind="rename", category=1, name="bittern"), by="bob", base=3)


def test_a_batch_is_done_and_undone_as_one_action(run: Run, review: Review) -> None:
    before = look(review.state)
    review.act(lambda _: batch(renamed(0, "tern"), merged(2, 3)), by="ann")
    after = look(review.state)
    assert (review.state.seq, after["categories"]) == (1, {0: "tern", 1: "heron", 2: "novel-001"})
    assert review.state.members(2).tolist() == [6, 7, 8, 9, 10, 11]
    assert look(Review(run).state) == after
    review.undo(by="ann")
    assert look(review.state) == before
    review.redo(by="ann")
    assert look(review.state) == after
    for refused in (batch(), batch(renamed(0, "a"), renamed(0, "b")), batch(renamed(0, "heron"))):
        with pytest.raises(UsageError):
            review.act(lambda _, action=refused: action, by="ann")
    with pytest.raises(UsageError, match="changed this in the meantime"):
        review.act(lambda _: batch(renamed(1, "egret"), renamed(2, "teal")), by="bob", base=2)
    assert look(review.state) == after


WHAT = st.tuples(
    st.sampled_from(tuple(FIELDS)),
    st.sampled_from(["ann", "bob"]),
    st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True),
    st.integers(0, 8),
    st.integers(0, 8),
)


def attempt(review: Review, what: tuple[str, str, list[int], int, int]) -> None:
    """Try an action that may be refused."""
    kind, by, rows, a, b = what
    paths = [f"{row:02d}.png" for row in rows]
    try:
        if kind in ("confirm", "reject", "flag"):
            review.act(verbs.decide, kind, None, paths, by=by)
        elif kind == "assign":
            review.act(verbs.move, paths, a, by=by)
        elif kind == "create":
            review.act(verbs.move, paths, f"new {a}", by=by)
        elif kind == "rename":
            review.act(verbs.rename, a, f"name {b}", by=by)
        elif kind == "merge":
            review.act(verbs.merge, [a, b], by=by)
        elif kind == "split":
            review.act(verbs.split, a, 2, by=by)
        elif kind == "distinct":
            review.act(lambda _: Action(kind=kind, categories=(a, b)), by=by)
        elif kind == "refuse":
            group = Group(category=a, rows=np.array(rows))
            review.act(lambda _: Action(kind=kind, category=a, groups=(group,)), by=by)
        elif kind == "batch":
            review.act(lambda _: batch(renamed(a, f"name {b}"), merged(b, rows[0])), by=by)
        elif kind == "note":
            review.act(lambda _: note(f"note {b}", *rows), by=by)
            review.act(lambda _: note(f"note {b}", category=a), by=by)
        elif kind == "undo":
            review.undo(by=by)
        else:
            review.redo(by=by)
    except UsageError:
        pass


@pytest.mark.slow
@given(st.lists(WHAT, max_size=14))
def test_whatever_was_done_is_replayed_and_undone(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    run: Run = write_small(tmp_path_factory.mktemp("any") / "run")
    review = Review(run)
    first = look(review.state)
    for what in steps:
        before = look(review.state)
        n_before = review.state.seq
        attempt(review, what)
        if review.state.seq == n_before:
            assert look(review.state) == before  # a refused action changes nothing
    assert look(Review(run).state) == look(review.state)
    stuck = False
    while not stuck:  # at most one of the two has to wait for the other
        stuck = True
        for by in ("ann", "bob"):
            try:
                review.undo(by=by)
                stuck = False
            except UsageError:
                pass
    if not any(review.state.last_done(by) for by in ("ann", "bob")):
        assert look(review.state) == first


def test_what_was_chosen_on_a_view_that_the_review_never_had_is_refused(review: Review) -> None:
    """A page that was open when an older copy of the log was restored has seen actions that no
    longer exist."""
    with pytest.raises(UsageError):
        review.act(lambda _: decided("confirm", 2, 6), by="ann", base=1)
    review.act(lambda _: decided("confirm", 2, 6), by="ann", base=0)
