"""What a discovery after a review has changed, in words."""

from typing import Any

import pytest

from shoal.discovery.reviewed.refinement import changes_in_words

CHANGES: dict[str, Any] = {
    "became_known": [],
    "n_decided": 3,
    "n_kept_out": 0,
    "n_moved": 1,
    "n_images": 12,
}
CHANGES |= {"n_placed": 0, "kept": [], "new": [], "gone": []}


@pytest.mark.parametrize(
    ("misfits", "words"),
    [
        (["rename by ann"], "1 action of the review no longer fits: rename by ann"),
        (
            ["rename by ann", "merge by bob"],
            "2 actions of the review no longer fit: rename by ann; 1 more in changes.json",
        ),
    ],
)
def test_of_what_no_longer_fits_one_is_named_and_where_the_others_are(
    misfits: list[str], words: str
) -> None:
    assert changes_in_words({**CHANGES, "does_not_fit": misfits})[-1] == f"note: {words}"
