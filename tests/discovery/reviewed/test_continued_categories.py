"""After a review the frozen result continues from the reviewed categories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.data.collection import Collection, PreviousCategories
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.results import FROZEN, frozen_result
from shoal.discovery.reviewed.refinement import count_reviewed
from shoal.methods.method import Representation

# Degrees on a circle: four groups of images
PLACES = [0, 1, 2, 30, 31, 32, 150, 151, 152, 90, 91, 92, 93]
NAMES = tuple(f"{row:02d}.png" for row in range(len(PLACES)))


def collection(
    before: list[int], labels: dict[int, int], apart: dict[int, frozenset[int]] | None = None
) -> Collection:
    """Return images with the reviewed categories `before`, -1 for none; the classes have the ids 3
    and 8."""
    previous = PreviousCategories(
        class_ids=(3, 8),
        names={3: "gull", 8: "tern", 5: "novel-001", 6: "novel-002"},
        categories={name: c for name, c in zip(NAMES, before, strict=True) if c >= 0},
        cannot_links={NAMES[row]: ids for row, ids in (apart or {}).items()},
        next_id=9,
        reserved_names=frozenset({"novel-003"}),
    )
    given = np.array([labels.get(row, -1) for row in range(len(NAMES))])
    return Collection(
        names=NAMES, labels=given, classes=("gull", "tern"), root=Path(), previous=previous
    )


def computed(images: Collection, **changes: Any) -> tuple[list[int], dict[str, object]]:
    """Return the category id of each image, their number, and the source of that number."""
    angles = torch.deg2rad(torch.tensor(PLACES, dtype=torch.float32))
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    frozen = Representation(embeddings=points, embed=lambda _: torch.empty(0))
    few = {"inference.shift.n_neighbors": 2}
    result = frozen_result(frozen, images, choose_settings(train=False, changes=few, **changes))
    assert result.name == FROZEN
    found = result.discovery
    return [result.ids[at] for at in result.categories], {
        "k": found.n_clusters,
        "by": found.n_clusters_source,
    }


# A review has merged the four groups into three categories
MERGED = [3] * 6 + [5] * 3 + [8] * 4


def test_a_merge_applies_to_undecided_images() -> None:
    """The review has merged the first two groups; the only label in them would not merge them."""
    ids, about = computed(collection(MERGED, {0: 0, 9: 1}))
    assert ids == MERGED
    assert about == {"k": 3, "by": "the review"}


def test_undecided_images_move_to_the_nearest_category() -> None:
    """06.png and 08.png are in the wrong category; 08.png is labeled with it and stays."""
    before = [3] * 3 + [5] * 3 + [8] + [6] * 2 + [5] + [8] * 3
    ids, _ = computed(collection(before, {0: 0, 1: 0, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1}))
    assert ids == [3] * 3 + [5] * 3 + [6] * 2 + [8] * 5


def test_an_image_does_not_return_to_the_nearest_category_that_it_was_rejected_from() -> None:
    """02.png is between the labels of category 3, and 5 comes next."""
    before = [3] * 2 + [5] + [5] * 3 + [6] * 3 + [8] * 4
    labels = {0: 0, 1: 0, 9: 1}
    assert computed(collection(before, labels))[0][2] == 3
    assert computed(collection(before, labels, {2: frozenset({3})}))[0][2] == 5


def test_rejected_images_move_to_the_nearest_category_or_form_a_new_one() -> None:
    apart = {2: frozenset({3}), **{row: frozenset({8}) for row in (6, 7, 8)}}
    before = [3, 3, -1] + [5] * 3 + [-1] * 3 + [8] * 4
    ids, about = computed(collection(before, {0: 0, 9: 1, 10: 1, 11: 1, 12: 1}, apart))
    assert ids == [3, 3, 5, 5, 5, 5, 9, 9, 9, 8, 8, 8, 8]
    assert about["k"] == 4


def test_a_requested_number_of_categories_is_used() -> None:
    images = collection(MERGED, {0: 0, 9: 1})
    assert computed(images, n_clusters=4)[1] == {"k": 4, "by": ""}
    assert computed(images, n_clusters=3)[1] == {"k": 3, "by": "the review"}
    assert computed(images, n_clusters="4-6")[1]["by"] == ""
    assert computed(images, n_clusters="2-6")[1]["by"] == "the review"


def test_without_a_review_images_are_clustered_from_scratch() -> None:
    images = replace(collection(MERGED, {0: 0, 3: 1}), previous=None)
    assert computed(images, n_clusters=4) == (
        [0] * 3 + [1] * 3 + [3] * 3 + [2] * 4,
        {"k": 4, "by": ""},
    )


def test_categories_of_new_labels_are_counted() -> None:
    assert count_reviewed(collection([3] * 9 + [5] * 4, {})) == 2
    assert count_reviewed(collection([3] * 9 + [5] * 4, {0: 0, 8: 1})) == 3
    assert count_reviewed(collection([-1] * 9 + [5] * 4, {})) == 1
