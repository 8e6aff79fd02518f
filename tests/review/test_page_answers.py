"""What the page is told of a review, without a server: words, evidence, what can be undone, who is
put apart."""

from dataclasses import replace
from pathlib import Path

from shoal.review import verbs
from shoal.review.actions import Action
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server import columns
from shoal.server.search import Search
from small_runs import NAMES, write_small


def words(review: Review) -> list[str]:
    return [columns.entry_words(review.state, entry)["words"] for entry in review.state.entries]


def test_an_action_in_words_names_its_categories(review: Review) -> None:
    verbs.decide(review, "confirm", "heron", None)
    verbs.decide(review, "reject", None, ["06.png", "00.png"])
    verbs.decide(review, "flag", None, ["06.png"])
    verbs.decide(review, "flag", None, ["01.png", "03.png", "07.png", "09.png"])
    verbs.rename(review, "heron", "egret")
    assert words(review)[:4] == [
        "confirm 3 images of egret",
        "reject 2 images of gull, novel-001",
        "flag 1 image without category",
        "flag 4 images of gull, egret, novel-001, …",
    ]


def test_a_move_in_words_says_from_where_without_the_category_it_goes_to(review: Review) -> None:
    verbs.move(review, ["00.png", "01.png"], "gull")
    verbs.move(review, ["01.png", "03.png"], "gull")
    verbs.decide(review, "reject", None, ["04.png"])
    verbs.move(review, ["02.png", "04.png"], "gull")
    moves = [line for line in words(review) if line.startswith("move")]
    assert moves[:2] == ["move 2 images to gull", "move 2 images from heron to gull"]
    assert moves[2] == "move 2 images without category to gull"


def test_the_page_is_told_what_undo_will_undo_and_what_it_skips(review: Review) -> None:
    verbs.decide(review, "flag", None, ["00.png"], by="bob")
    verbs.move(review, ["01.png"], "heron", by="bob")
    assert columns.changes(review, 0, "bob")["undo"] == "move 1 image from gull to heron"
    verbs.decide(review, "confirm", None, ["01.png"], by="ann")
    assert columns.changes(review, 0, "bob")["undo"] == (
        "flag 1 image of gull (skipped 1 later action: undo of assign by bob (action 2): "
        "confirm by ann (action 3) rests on it; undo that first)"
    )


def test_the_page_is_told_which_categories_are_put_apart_when_that_changes(review: Review) -> None:
    assert columns.distinct_pairs(review.state) == []
    review.act(lambda _: Action(kind="distinct", categories=(3, 2)), by="ann")
    assert columns.changes(review, 0, "bob")["distinct"] == [(2, 3)]
    verbs.rename(review, "gull", "tern", by="ann")
    assert columns.changes(review, 1, "bob")["distinct"] is None
    review.again("undo", by="ann")
    review.again("undo", by="ann")
    assert columns.changes(review, 2, "bob")["distinct"] == []


def test_categories_that_people_made_have_evidence_of_their_own(tmp_path: Path) -> None:
    review = Review(
        write_small(tmp_path / "run", ids=(0, 0, 0, 1, 1, 1, *[2] * 90), names=NAMES[:3])
    )
    paths = review.answer.paths
    verbs.split(review, "novel-001", {"tern": paths[6::3], "skua": paths[7::3]})
    verbs.rename(review, "novel-001", "auk")
    found = {(pair["a"], pair["b"]): pair["second"] for pair in Search(review).merges()}
    named = {
        tuple(review.state.records[number].name for number in pair): share
        for pair, share in found.items()
    }
    among_them = {
        pair: share for pair, share in named.items() if {*pair} <= {"auk", "tern", "skua"}
    }
    assert among_them == {("auk", "tern"): 1.0, ("auk", "skua"): 1.0, ("tern", "skua"): None}


def test_what_was_rejected_in_an_earlier_review_is_not_offered_again(run: Run) -> None:
    """06.png is in novel-001, its second choice is novel-002."""
    shown = columns.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("novel-002", [])
    assert 6 in Search(Review(run)).candidates(3)["rows"]
    run.write_json("changes", {"cannot_links": {"06.png": [3]}})
    shown = columns.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("", ["novel-002"])
    assert 6 not in Search(Review(run)).candidates(3)["rows"]


def test_merges_are_suggested_of_known_categories_that_nobody_has_named(tmp_path: Path) -> None:
    """As after a review in which an image of each was confirmed."""
    run = write_small(tmp_path / "run", names=("gull", "heron", "novel-001", "novel-002 (2)"))
    run.write_categories([replace(category, is_novel=False) for category in run.categories])
    found = {frozenset((pair["a"], pair["b"])) for pair in Search(Review(run)).merges()}
    assert frozenset((2, 3)) in found
    assert frozenset((0, 1)) not in found
