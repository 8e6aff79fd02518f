"""The decisions of a review that the next discovery uses; twelve images, three each in gull, heron,
novel-001 and novel-002."""

from pathlib import Path

import numpy as np
import pytest

from shoal.review import verbs
from shoal.review.actions import Action, Group
from shoal.review.replay import replay_review
from shoal.review.review import Review
from shoal.review.reviewed_run import Decisions
from shoal.runs import Run
from small_runs import NAMES, write_small


@pytest.fixture
def review(run: Run) -> Review:
    return Review(run)


def split_off(review: Review, category: int, name: str, *rows: int) -> None:
    """Split a category as older versions allowed: the part may take all given labels with it."""
    part = Group(category=review.state.next_id, rows=np.array(rows), name=name)
    review.act(lambda _: Action(kind="split", category=category, groups=(part,)), by="ann")


def test_where_nothing_was_decided_the_given_labels_are_all_there_is(review: Review) -> None:
    found = Decisions(review.state)
    assert (found.labels, found.cannot_links) == ({}, {})
    assert found.given == {"00.png": 0, "03.png": 1}
    assert (found.known, found.became_known) == ((0, 1), ())


def test_confirmed_and_moved_images_are_labels_and_flagged_ones_are_not(review: Review) -> None:
    review.act(verbs.decide, "confirm", None, ["06.png"], by="ann")
    review.act(verbs.move, ["07.png"], "heron", by="ann")
    review.act(verbs.decide, "flag", None, ["08.png"], by="ann")
    found = Decisions(review.state)
    assert found.labels == {"06.png": 2, "07.png": 1}


def test_named_and_confirmed_novel_categories_are_known_and_keep_their_ids(review: Review) -> None:
    review.act(verbs.rename, "novel-002", "tern", by="ann")
    assert Decisions(review.state).became_known == (3,)
    review.act(verbs.decide, "confirm", None, ["06.png"], by="ann")
    review.act(verbs.move, ["11.png"], "skua", by="ann")
    found = Decisions(review.state)
    assert (found.known, found.became_known) == ((0, 1, 2, 3, 4), (2, 3, 4))
    assert found.names == {0: "gull", 1: "heron", 2: "novel-001", 3: "tern", 4: "skua"}
    assert found.next_id == 5
    assert {"novel-002", "tern"} <= found.taken


def test_rejected_images_are_cannot_links_and_lose_a_label_they_came_with(run: Run) -> None:
    run.write_json(
        "changes", {"cannot_links": {"06.png": [3], "07.png": [3, 9], "99.png": [0]}}
    )  # category 9 no longer exists
    review = Review(run)
    review.act(verbs.decide, "reject", None, ["00.png", "06.png"], by="ann")
    found = Decisions(review.state)
    assert found.cannot_links == {"00.png": {0}, "06.png": {2, 3}, "07.png": {3}}
    assert (found.label("00.png"), found.label("03.png")) == (-1, 1)
    assert found.contradicted == {"00.png"}
    assert "00.png" not in found.categories


def test_who_puts_an_image_back_takes_the_cannot_link_away(run: Run) -> None:
    run.write_json("changes", {"cannot_links": {"06.png": [2], "07.png": [3]}})
    review = Review(run)
    review.act(verbs.decide, "reject", None, ["06.png"], by="ann")
    review.act(verbs.move, ["06.png"], "novel-001", by="ann")
    review.act(verbs.move, ["07.png"], "novel-002", by="ann")
    assert Decisions(review.state).cannot_links == {}
    review.undo(by="ann")
    assert Decisions(review.state).cannot_links == {"07.png": {3}}
    review.undo(by="ann")
    assert Decisions(review.state).cannot_links == {"06.png": {2}, "07.png": {3}}


def test_a_merge_carries_labels_and_cannot_links_to_what_it_makes(review: Review) -> None:
    review.act(verbs.decide, "reject", None, ["06.png"], by="ann")
    review.act(verbs.merge, ["heron", "novel-001"], by="ann")
    review.act(verbs.merge, ["gull", "heron"], by="ann")
    found = Decisions(review.state)
    assert found.cannot_links == {"06.png": {0}}
    assert found.given == {"00.png": 0, "03.png": 0}
    assert (found.known, found.ended) == ((0,), {1: 0, 2: 0})
    assert found.called == {"gull": 0, "heron": 0, "novel-001": 0, "novel-002": 3}


def test_a_split_changes_no_label(review: Review) -> None:
    split_off(review, 0, "herring gull", 0, 1)
    found = Decisions(review.state)
    assert found.given == {"00.png": 0, "03.png": 1}
    assert (found.labels, found.contradicted, found.known) == ({}, set(), (0, 1, 4))
    review.act(verbs.decide, "confirm", None, ["00.png"], by="ann")
    found = Decisions(review.state)
    assert (found.label("00.png"), found.contradicted) == (4, {"00.png"})


@pytest.mark.parametrize("agrees", [False, True])
def test_a_split_after_a_decision_leaves_a_label_that_a_person_agreed_with(
    review: Review, agrees: bool
) -> None:
    if agrees:
        review.act(verbs.decide, "confirm", None, ["00.png", "01.png"], by="ann")
        label = 0
    else:
        review.act(verbs.move, ["00.png", "01.png"], "heron", by="ann")
        label = 4
    split_off(review, 0 if agrees else 1, "skua", 0, 1)
    found = Decisions(review.state)
    assert found.labels == {"00.png": label, "01.png": 4}
    assert found.contradicted == (set() if agrees else {"00.png"})


def test_a_label_goes_with_its_name_where_people_gave_it_to_a_part(review: Review) -> None:
    split_off(review, 0, "x", 0)
    review.act(verbs.rename, "gull", "boxer", by="ann")
    assert Decisions(review.state).given["00.png"] == 0
    review.act(verbs.rename, "x", "gull", by="ann")
    found = Decisions(review.state)
    assert (found.given["00.png"], found.contradicted) == (4, set())
    review.act(verbs.rename, "gull", "tern", by="ann")
    review.act(verbs.rename, "novel-001", "gull", by="ann")  # it is not a part of the former gull
    assert Decisions(review.state).given["00.png"] == 0


def test_a_part_that_nobody_named_or_confirmed_is_not_known(review: Review) -> None:
    review.act(verbs.split, "novel-001", 2, by="ann")
    assert Decisions(review.state).known == (0, 1)
    (part,) = review.state.members(4).tolist()
    review.act(verbs.decide, "confirm", None, [review.state.paths[part]], by="ann")
    assert Decisions(review.state).known == (0, 1, 4)
    review.undo(by="ann")
    review.act(verbs.rename, "novel-001 (2)", "tern", by="ann")
    assert Decisions(review.state).became_known == (4,)


@pytest.mark.parametrize("last", [0, 4])
def test_a_part_that_a_discovery_after_the_review_has_no_more_is_not_split_off_again(
    run: Run, tmp_path: Path, last: int
) -> None:
    """No other category is named after the part either: the discovery keeps its own categories and
    names."""
    review = Review(run)
    review.act(verbs.split, "gull", {"tern": ["01.png", "02.png"]}, by="ann")
    review.act(verbs.rename, "tern", "skua", by="ann")
    ids = (0, last, last, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    other = write_small(tmp_path / "other", ids=ids, names=(*NAMES, "novel-003")[: 4 + bool(last)])
    entries, problems = replay_review(
        run.path, other, by="ann", ids={number: number for number in range(4)}
    )
    assert (entries, problems) == ([], [])
    there = Review(other).state.categories.values()
    assert [record.name for record in there] == [*NAMES, "novel-003"][: 4 + bool(last)]
