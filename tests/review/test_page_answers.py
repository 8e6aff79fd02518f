"""What the page is told of a review, without a server: words, evidence, what can be undone, who is
put apart."""

from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server import columns
from shoal.server.search import Search


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


def test_the_page_is_told_what_undo_will_undo_and_what_it_skips(review: Review) -> None:
    verbs.decide(review, "flag", None, ["00.png"], by="bob")
    verbs.move(review, ["01.png"], "heron", by="bob")
    assert columns.changes(review, 0, "bob")["undo"] == "move 1 image from gull to heron"
    verbs.decide(review, "confirm", None, ["01.png"], by="ann")
    assert columns.changes(review, 0, "bob")["undo"] == (
        "flag 1 image of gull (skipped 1 later action: undo of assign by bob (action 2): "
        "confirm by ann (action 3) rests on it; undo that first)"
    )


def test_what_was_rejected_in_an_earlier_review_is_not_offered_again(run: Run) -> None:
    """06.png is in novel-001, its second choice is novel-002."""
    shown = columns.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("novel-002", [])
    assert 6 in Search(Review(run)).candidates(3)["rows"]
    run.write_json("changes", {"cannot_links": {"06.png": [3]}})
    shown = columns.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("", ["novel-002"])
    assert 6 not in Search(Review(run)).candidates(3)["rows"]
