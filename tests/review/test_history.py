"""What a person undoes and redoes, with one page open or several, and beside Python."""

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.review import verbs
from shoal.review.actions import Action, Entry, Group
from shoal.review.history import Window
from shoal.review.review import Review
from shoal.review.state import Conflict
from shoal.runs import Run


def confirm(review: Review, row: int, window: str, by: str = "ann") -> Entry:
    group = Group(category=int(review.state.images.category[row]), rows=np.array([row]))
    return review.act(lambda _: Action(kind="confirm", groups=(group,)), by=by, window=window)


def test_a_window_undoes_what_was_done_in_it_or_before_it_was_opened(
    review: Review, run: Run
) -> None:
    verbs.rename(review, "gull", "tern", by="ann")
    a = Window("a", opened=1)
    b = Window("b", opened=1)
    confirm(review, 3, "a")
    confirm(review, 4, "b")
    confirm(review, 5, "c", by="bob")
    again = Review(run)  # as after a server was started again
    assert again.again("undo", by="ann", window=a)[0].action.of == 2
    assert again.again("undo", by="ann", window=b)[0].action.of == 3
    assert again.again("undo", by="ann", window=a)[0].action.of == 1
    with pytest.raises(UsageError):
        again.again("undo", by="ann", window=a)
    assert again.state.images.status[5] == 1


def test_a_window_redoes_what_was_undone_in_it_until_something_else_is_done_there(
    review: Review,
) -> None:
    a = Window("a", opened=0)
    b = Window("b", opened=0)
    confirm(review, 3, "a")
    confirm(review, 4, "b")
    review.again("undo", by="ann", window=a)
    review.again("undo", by="ann", window=b)
    confirm(review, 5, "b")
    with pytest.raises(UsageError):
        review.again("redo", by="ann", window=b)
    assert review.again("redo", by="ann", window=a)[0].action.of == 1
    with pytest.raises(UsageError):
        review.again("redo", by="ann", window=a)


def test_a_window_undoes_and_redoes_what_was_done_in_it_under_another_name(review: Review) -> None:
    confirm(review, 3, "b")
    a = Window("a", opened=1)
    confirm(review, 4, "a")
    assert review.again("undo", by="bea", window=a)[0].action.of == 2
    assert review.again("redo", by="cleo", window=a)[0].action.of == 2
    assert review.again("undo", by="ann", window=a)[0].action.of == 2
    with pytest.raises(UsageError):
        review.again("undo", by="bea", window=a)  # ann did it before the window was opened
    assert review.again("undo", by="ann", window=a)[0].action.of == 1


def test_that_two_categories_are_not_the_same_is_said_once_kept_and_undone(
    review: Review, run: Run
) -> None:
    review.act(lambda _: Action(kind="distinct", categories=(3, 2)), by="ann")
    assert Review(run).state.distinct == {(2, 3)}
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="distinct", categories=(2, 3)), by="bob")
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="distinct", categories=(2, 2)), by="bob")
    review.again("undo", by="ann")
    assert review.state.distinct == frozenset()
    review.again("redo", by="ann")
    verbs.merge(review, ["novel-001", "novel-002"], by="bob")  # who knows better
    assert Review(run).state.distinct == {(2, 3)}


def distinct(review: Review, *pair: int, by: str) -> Entry:
    return review.act(lambda _: Action(kind="distinct", categories=pair), by=by)


def test_a_merge_of_what_was_put_apart_meanwhile_is_refused(review: Review) -> None:
    merge = Action(kind="merge", category=1, categories=(3, 2))
    distinct(review, 0, 1, by="ann")  # another pair
    distinct(review, 2, 3, by="ann")
    with pytest.raises(Conflict):
        review.act(lambda _: merge, by="bob", base=1)
    review.act(lambda _: merge, by="bob", base=2)  # who has seen it, and knows better
    review.again("undo", by="bob")
    review.again("undo", by="ann")
    review.again("redo", by="ann")
    with pytest.raises(Conflict):
        review.again("redo", by="bob", base=5)
    review.again("undo", by="ann")
    review.again("redo", by="bob", base=4)  # nobody says so any more


def test_undo_skips_what_somebody_else_has_built_on_and_says_so(review: Review) -> None:
    verbs.decide(review, "flag", None, ["00.png"], by="bob")
    verbs.decide(review, "flag", None, ["02.png"], by="bob")
    verbs.move(review, ["01.png"], "heron", by="bob")
    verbs.decide(review, "confirm", None, ["01.png"], by="ann")
    with pytest.raises(Conflict):
        review.again("undo", by="bob", base=3)  # who has not seen it, and means the move
    entry, skipped = review.again("undo", by="bob", base=4)
    assert entry.action.of == 2
    assert [str(reason) for reason in skipped] == [
        "undo of assign by bob (action 3): confirm by ann (action 4) rests on it; undo that first"
    ]
    review.again("undo", by="ann")
    review.again("redo", by="ann")
    with pytest.raises(Conflict):
        review.again("undo", by="bob", base=6)  # who has seen that the move could be undone
    assert review.again("undo", by="bob", base=7)[0].action.of == 1
    with pytest.raises(Conflict):
        review.again("undo", by="bob")  # nothing else is left


def test_redo_skips_what_somebody_else_has_changed_or_ended(review: Review) -> None:
    verbs.rename(review, "novel-002", "skua", by="bob")
    verbs.move(review, ["00.png"], "heron", by="bob")
    verbs.decide(review, "flag", None, ["05.png"], by="bob")
    for _ in range(3):
        review.again("undo", by="bob")
    verbs.rename(review, "novel-001", "skua", by="ann")
    verbs.merge(review, ["heron", "gull"], into="gull", by="ann")
    with pytest.raises(Conflict):
        review.again("redo", by="bob", base=6)
    with pytest.raises(Conflict):
        review.again("redo", by="bob")  # the flag is of an image of heron, the move goes there
    review.again("undo", by="ann")
    entry, skipped = review.again("redo", by="bob")
    assert (entry.action.of, len(skipped)) == (2, 1)


def test_no_part_of_a_split_vanishes_with_an_image_of_somebody_else_in_it(review: Review) -> None:
    verbs.split(review, "gull", {"tern": ["02.png"], "skua": ["01.png"]}, by="bob")
    verbs.move(review, ["06.png"], "tern", by="ann")
    with pytest.raises(Conflict):
        review.again("undo", by="bob")
