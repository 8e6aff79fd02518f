"""Undo and redo with several reviewers."""

import pytest

from shoal.errors import UsageError
from shoal.review import verbs
from shoal.review.actions import Action
from shoal.review.review import Review
from shoal.review.state import State
from shoal.runs import Run


def test_that_two_categories_are_not_the_same_is_said_once_kept_and_undone(
    review: Review, run: Run
) -> None:
    review.act(lambda _: Action(kind="distinct", categories=(3, 2)), by="ann")
    assert Review(run).state.distinct == {(2, 3)}
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="distinct", categories=(2, 3)), by="bob")
    with pytest.raises(UsageError):
        review.act(lambda _: Action(kind="distinct", categories=(2, 2)), by="bob")
    review.undo(by="ann")
    assert review.state.distinct == frozenset()
    review.redo(by="ann")
    review.act(verbs.merge, ["novel-001", "novel-002"], by="bob")  # bob overrules ann
    assert Review(run).state.distinct == {(2, 3)}


def distinct(review: Review, *pair: int, by: str) -> Action:
    return review.act(lambda _: Action(kind="distinct", categories=pair), by=by)


def test_a_merge_of_what_was_put_apart_meanwhile_is_refused(review: Review) -> None:
    merge = Action(kind="merge", category=1, categories=(3, 2))
    distinct(review, 0, 1, by="ann")  # a different pair
    distinct(review, 2, 3, by="ann")
    with pytest.raises(UsageError):
        review.act(lambda _: merge, by="bob", base=1)
    review.act(lambda _: merge, by="bob", base=2)  # bob has seen ann's action and overrules it
    review.undo(by="bob")
    review.undo(by="ann")
    review.redo(by="ann")
    with pytest.raises(UsageError):
        review.act(State.undo_or_redo, "redo", "bob", by="bob", base=5)
    review.undo(by="ann")
    review.act(
        State.undo_or_redo, "redo", "bob", by="bob", base=4
    )  # no reviewer marks them as distinct any more


def test_undo_is_refused_while_somebody_elses_action_depends_on_it(review: Review) -> None:
    review.act(verbs.decide, "flag", None, ["00.png"], by="bob")
    review.act(verbs.move, ["01.png"], "heron", by="bob")
    review.act(verbs.decide, "confirm", None, ["01.png"], by="ann")
    with pytest.raises(UsageError):
        review.undo(by="bob")
    review.undo(by="ann")
    assert [review.undo(by="bob").of for _ in range(2)] == [2, 1]
    assert [review.redo(by="bob").of for _ in range(2)] == [1, 2]
    with pytest.raises(UsageError):
        review.redo(by="bob")


def test_redo_is_refused_where_somebody_else_has_changed_its_images_or_category(
    review: Review,
) -> None:
    review.act(verbs.move, ["00.png"], "heron", by="bob")
    review.undo(by="bob")
    review.act(verbs.merge, ["heron", "gull"], "gull", by="ann")
    with pytest.raises(UsageError):
        review.redo(by="bob")
    review.undo(by="ann")
    assert review.redo(by="bob").of == 1


def test_no_part_of_a_split_vanishes_with_an_image_of_somebody_else_in_it(review: Review) -> None:
    review.act(verbs.split, "gull", {"tern": ["02.png"], "skua": ["01.png"]}, by="bob")
    review.act(verbs.move, ["06.png"], "tern", by="ann")
    with pytest.raises(UsageError):
        review.undo(by="bob")
