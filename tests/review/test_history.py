"""What a person undoes and redoes, with one page open or several, and beside Python."""

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.review import verbs
from shoal.review.actions import Action, Entry, Group
from shoal.review.history import Window
from shoal.review.review import Review
from shoal.runs import Run


def confirm(review: Review, row: int, window: str, by: str = "ann") -> Entry:
    group = Group(category=int(review.state.images.category[row]), rows=np.array([row]))
    return review.act(lambda _: Action(kind="confirm", groups=(group,)), by=by, window=window)


def test_a_window_undoes_what_was_done_in_it_or_before_it_was_opened(review: Review, run: Run) -> None:
    verbs.rename(review, "gull", "tern", by="ann")
    a, b = Window("a", opened=1), Window("b", opened=1)
    confirm(review, 3, "a")
    confirm(review, 4, "b")
    confirm(review, 5, "c", by="bob")
    again = Review(run)  # as after a server was started again
    assert again.undo(by="ann", window=a).action.of == 2
    assert again.undo(by="ann", window=b).action.of == 3
    assert again.undo(by="ann", window=a).action.of == 1
    with pytest.raises(UsageError, match="ann has nothing to undo in this window"):
        again.undo(by="ann", window=a)
    assert again.state.images.status[5] == 1


def test_a_window_redoes_what_was_undone_in_it_until_something_else_is_done_there(review: Review) -> None:
    a, b = Window("a", opened=0), Window("b", opened=0)
    confirm(review, 3, "a")
    confirm(review, 4, "b")
    review.undo(by="ann", window=a)
    review.undo(by="ann", window=b)
    confirm(review, 5, "b")
    with pytest.raises(UsageError, match="nothing to redo in this window"):
        review.redo(by="ann", window=b)
    assert review.redo(by="ann", window=a).action.of == 1
    with pytest.raises(UsageError, match="nothing to redo"):
        review.redo(by="ann", window=a)


def test_a_new_window_and_python_go_on_from_all_that_a_person_did(review: Review) -> None:
    confirm(review, 3, "a")
    confirm(review, 4, "b")
    assert review.undo(by="ann").action.of == 2
    assert review.redo(by="ann", window=Window("new", opened=3)).action.of == 2
    assert review.undo(by="ann", window=Window("new", opened=4)).action.of == 2
    confirm(review, 5, "a")
    with pytest.raises(UsageError, match=r"ann has nothing to redo$"):
        review.redo(by="ann")  # something else was done since


def test_that_two_categories_are_not_the_same_is_said_once_kept_and_undone(review: Review, run: Run) -> None:
    review.act(lambda _: Action(kind="distinct", categories=(3, 2)), by="ann")
    assert Review(run).state.distinct == {(2, 3)}
    with pytest.raises(UsageError, match="novel-001 and novel-002: somebody has said already"):
        review.act(lambda _: Action(kind="distinct", categories=(2, 3)), by="bob")
    with pytest.raises(UsageError, match="expected two categories"):
        review.act(lambda _: Action(kind="distinct", categories=(2, 2)), by="bob")
    review.undo(by="ann")
    assert review.state.distinct == frozenset()
    review.redo(by="ann")
    verbs.merge(review, ["novel-001", "novel-002"], by="bob")  # who knows better
    assert Review(run).state.distinct == {(2, 3)}
