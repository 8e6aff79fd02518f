"""After a review, categories keep names and ids, and images stay out of categories they were
rejected from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from shoal.data.collection import PreviousCategories
from shoal.discovery.reviewed.refinement import reuse_names
from small_points import at

IMAGES = [f"{letter}.png" for letter in "abcdefghij"]

# Per image: the class gull, the class tern (without labeled images), two novel categories
IDS_BEFORE = [0, 0, 5, 5, 7, 7, 7, 9, 9, 9]
EARLIER = PreviousCategories(
    class_ids=(0, 5),
    names={0: "gull", 5: "tern", 7: "novel-002", 9: "novel-004"},
    categories=dict(zip(IMAGES, IDS_BEFORE, strict=True)),
    cannot_links={},
    next_id=12,
    reserved_names=frozenset({"novel-001", "novel-003"}),
)
CLASSES = ("gull", "tern")


def named(
    categories: list[int], earlier: PreviousCategories = EARLIER
) -> tuple[list[str], dict[str, int]]:
    """Return the name of each image's category, and the id of each name."""
    collection = SimpleNamespace(names=IMAGES, classes=CLASSES)
    # Categories with neighboring numbers are nearest.
    points = at(*(20 * category for category in categories))
    moved, names, ids, _ = reuse_names(np.array(categories), points, collection, earlier)
    return [names[position] for position in moved], dict(zip(names, ids, strict=True))


def test_categories_keep_ids_and_names_in_any_order() -> None:
    names, ids = named(
        [0, 0, 3, 3, 4, 4, 4, 2, 2, 2]
    )  # positions from 2 on are novel, and 1 has no labeled image
    assert names == ["gull"] * 2 + ["tern"] * 2 + ["novel-002"] * 3 + ["novel-004"] * 3
    assert ids == {"gull": 0, "tern": 5, "novel-002": 7, "novel-004": 9}


def test_a_new_category_gets_an_unused_name_and_id() -> None:
    names, ids = named([0, 0, 2, 3, 3, 3, 3, 4, 4, 5])
    assert names == ["gull"] * 2 + ["novel-005"] + ["novel-002"] * 4 + ["novel-004"] * 2 + [
        "novel-006"
    ]
    assert ids == {
        "gull": 0,
        "tern": 5,
        "novel-005": 12,
        "novel-002": 7,
        "novel-004": 9,
        "novel-006": 13,
    }


def test_a_known_class_with_labels_keeps_its_cluster() -> None:
    names, ids = named([0, 1, 2, 2, 3, 3, 3, 4, 4, 4])
    assert names[:4] == ["gull", "tern", "novel-005", "novel-005"]
    assert ids["novel-005"] == 12


def test_a_rejected_image_moves_to_the_nearest_allowed_category() -> None:
    thrown_out = replace(
        EARLIER, cannot_links={"e.png": frozenset({7}), "a.png": frozenset({9, 3})}
    )
    names, _ = named([0, 0, 3, 3, 4, 4, 4, 2, 2, 2], thrown_out)
    assert names == ["gull"] * 2 + ["tern"] * 2 + ["tern"] + ["novel-002"] * 2 + ["novel-004"] * 3


def test_an_image_rejected_from_all_categories_forms_a_new_one() -> None:
    thrown_out = replace(EARLIER, cannot_links={"e.png": frozenset({0, 5, 7, 9})})
    names, ids = named([0, 0, 3, 3, 4, 4, 4, 2, 2, 2], thrown_out)
    assert (names[4], ids["novel-005"]) == ("novel-005", 12)
