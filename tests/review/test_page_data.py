"""The data of a review that is sent to the page, tested without a server."""

from shoal.review import verbs
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server import page_data
from shoal.server.search import Search


def test_the_page_is_told_what_undo_will_undo(review: Review) -> None:
    review.act(verbs.decide, "flag", None, ["00.png"], by="bob")
    review.act(verbs.move, ["01.png"], "heron", by="bob")
    assert page_data.changes(review, 0, "bob")["undo"] == "move 1 image (heron)"


def test_what_was_rejected_in_an_earlier_review_is_not_offered_again(run: Run) -> None:
    """06.png is in novel-001, and its second choice is novel-002."""
    shown = page_data.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("novel-002", [])
    assert 6 in Search(Review(run)).candidates(3)["rows"]
    run.write_json("changes", {"cannot_links": {"06.png": [3]}})
    shown = page_data.images(Review(run), [6])[0]
    assert (shown["second"], shown["rejected"]) == ("", ["novel-002"])
    assert 6 not in Search(Review(run)).candidates(3)["rows"]
