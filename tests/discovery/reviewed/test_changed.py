"""What a discovery after a review has changed, in words."""

from typing import Any

from shoal.discovery.reviewed.refinement import changes_in_words

CHANGES: dict[str, Any] = {
    "became_known": [],
    "n_decided": 3,
    "n_kept_out": 0,
    "n_moved": 1,
    "n_images": 12,
}
CHANGES |= {"n_placed": 0, "kept": [], "new": [], "gone": []}


def test_a_category_that_is_gone_is_not_called_known() -> None:
    gone = [{"category_id": 4, "category": "tern", "before": 2}]
    changes = {**CHANGES, "became_known": ["tern", "skua"], "gone": gone, "does_not_fit": []}
    first, second = changes_in_words(changes)
    assert "tern" not in first
    assert "skua" in first
    assert "tern" in second


def test_of_what_no_longer_fits_one_is_named() -> None:
    last = changes_in_words({**CHANGES, "does_not_fit": ["rename by ann", "merge by bob"]})[-1]
    assert "rename by ann" in last
    assert "merge by bob" not in last
