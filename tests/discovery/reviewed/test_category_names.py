"""After a review categories keep names and ids, and images stay out of where they were thrown
out."""

from dataclasses import replace

import numpy as np
import torch

from shoal.data.collection import PreviousCategories
from shoal.discovery.reviewed.category_names import name_as_before

IMAGES = [f"{letter}.png" for letter in "abcdefghij"]
IDS_BEFORE = [0, 0, 5, 5, 7, 7, 7, 9, 9, 9]
"""Of the images: the class gull, the class tern (which nobody has labeled), two novel
categories."""
EARLIER = PreviousCategories(
    class_ids=(0, 5),
    names={0: "gull", 5: "tern", 7: "novel-002", 9: "novel-004"},
    categories=dict(zip(IMAGES, IDS_BEFORE, strict=True)),
    apart={},
    next_id=12,
    taken=frozenset({"novel-001", "novel-003"}),
)
CLASSES = ("gull", "tern")


def points(ids: list[int]) -> torch.Tensor:
    """A direction per category; those of neighboring numbers are nearest."""
    angles = torch.deg2rad(torch.tensor(ids, dtype=torch.float64) * 20)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def named(
    categories: list[int], earlier: PreviousCategories = EARLIER
) -> tuple[list[str], dict[str, int]]:
    """The name of each image's category, and the id of each name."""
    found = name_as_before(np.array(categories), CLASSES, IMAGES, points(categories), earlier)
    return [found.names[at] for at in found.categories], dict(
        zip(found.names, found.ids, strict=True)
    )


def test_categories_of_the_same_images_keep_ids_and_names_whatever_their_order() -> None:
    names, ids = named(
        [0, 0, 3, 3, 4, 4, 4, 2, 2, 2]
    )  # positions from 2 on are novel, and 1 has no labeled image
    assert names == ["gull"] * 2 + ["tern"] * 2 + ["novel-002"] * 3 + ["novel-004"] * 3
    assert ids == {"gull": 0, "tern": 5, "novel-002": 7, "novel-004": 9}


def test_a_new_category_gets_a_name_and_an_id_that_nothing_had() -> None:
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


def test_a_class_that_labels_have_found_is_not_given_to_another_cluster() -> None:
    names, ids = named([0, 1, 2, 2, 3, 3, 3, 4, 4, 4])
    assert names[:4] == ["gull", "tern", "novel-005", "novel-005"]
    assert ids["novel-005"] == 12


def test_a_rejected_image_ends_in_the_next_category_by_its_id() -> None:
    thrown_out = replace(EARLIER, apart={"e.png": frozenset({7}), "a.png": frozenset({9, 3})})
    names, _ = named([0, 0, 3, 3, 4, 4, 4, 2, 2, 2], thrown_out)
    assert names == ["gull"] * 2 + ["tern"] * 2 + ["tern"] + ["novel-002"] * 2 + ["novel-004"] * 3


def test_an_image_thrown_out_of_everything_is_a_new_category() -> None:
    thrown_out = replace(EARLIER, apart={"e.png": frozenset({0, 5, 7, 9})})
    names, ids = named([0, 0, 3, 3, 4, 4, 4, 2, 2, 2], thrown_out)
    assert (names[4], ids["novel-005"]) == ("novel-005", 12)
