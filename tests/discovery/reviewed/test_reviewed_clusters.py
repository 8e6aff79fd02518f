"""After a review the first answer goes on from the categories that people left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.data.collection import Collection, PreviousCategories
from shoal.discovery.answers import FROZEN
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.first_answer import answer_frozen
from shoal.discovery.reviewed.reviewed_clusters import n_reviewed
from shoal.methods.clusters import Representation

PLACES = [0, 1, 2, 30, 31, 32, 150, 151, 152, 90, 91, 92, 93]
"""Degrees on a circle: four groups of images."""
NAMES = tuple(f"{row:02d}.png" for row in range(len(PLACES)))


def collection(
    before: list[int], labels: dict[int, int], apart: dict[int, frozenset[int]] | None = None
) -> Collection:
    """Images that a review left in categories `before`, -1 for none; the classes have the ids 3 and
    8."""
    earlier = PreviousCategories(
        class_ids=(3, 8),
        names={3: "gull", 8: "tern", 5: "novel-001", 6: "novel-002"},
        categories={name: c for name, c in zip(NAMES, before, strict=True) if c >= 0},
        apart={NAMES[row]: ids for row, ids in (apart or {}).items()},
        next_id=9,
        taken=frozenset({"novel-003"}),
    )
    given = np.array([labels.get(row, -1) for row in range(len(NAMES))])
    return Collection(
        names=NAMES, labels=given, classes=("gull", "tern"), root=Path(), earlier=earlier
    )


def answered(images: Collection, **changes: Any) -> tuple[list[int], dict[str, object]]:
    """The id of each image's category, how many there are, and who says so."""
    angles = torch.deg2rad(torch.tensor(PLACES, dtype=torch.float32))
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    frozen = Representation(embeddings=points, embed=lambda _: torch.empty(0))
    few = {"inference.shift.n_neighbors": 2}
    answer = answer_frozen(frozen, images, choose_settings(train=False, changes=few, **changes))
    assert answer.name == FROZEN
    found = answer.discovery
    return [answer.named.ids[at] for at in answer.named.categories], {
        "k": found.n_clusters,
        "by": found.counted_by,
    }


MERGED = [3] * 6 + [5] * 3 + [8] * 4
"""Of the four groups a person has made three categories."""


def test_a_merge_holds_for_images_that_nobody_has_decided_on() -> None:
    """The first two groups are one category by a merge, and a label in the first group alone says
    nothing of that."""
    ids, about = answered(collection(MERGED, {0: 0, 9: 1}))
    assert ids == MERGED
    assert about == {"k": 3, "by": "the review"}


def test_an_image_that_nobody_has_decided_on_goes_where_it_is_nearest_by_now() -> None:
    """06.png was left in the wrong category, and so was 09.png, which is labeled: that one
    stays."""
    before = [3] * 3 + [5] * 3 + [8] + [6] * 2 + [5] + [8] * 3
    ids, _ = answered(collection(before, {0: 0, 9: 0, 10: 1}))
    assert ids == [3] * 3 + [5] * 3 + [6] * 3 + [3] + [8] * 3


def test_images_that_were_thrown_out_go_to_the_next_category_or_make_one_together() -> None:
    apart = {2: frozenset({3}), **{row: frozenset({8}) for row in (6, 7, 8)}}
    before = [3, 3, -1] + [5] * 3 + [-1] * 3 + [8] * 4
    ids, about = answered(collection(before, {0: 0, 9: 1, 10: 1, 11: 1, 12: 1}, apart))
    assert ids == [3, 3, 5, 5, 5, 5, 9, 9, 9, 8, 8, 8, 8]
    assert about["k"] == 4


def test_who_asks_for_another_number_gets_it() -> None:
    images = collection(MERGED, {0: 0, 9: 1})
    assert answered(images, n_clusters=4)[1] == {"k": 4, "by": ""}
    assert answered(images, n_clusters=3)[1] == {"k": 3, "by": "the review"}
    assert answered(images, n_clusters="4-6")[1]["by"] == ""
    assert answered(images, n_clusters="2-6")[1]["by"] == "the review"


def test_without_a_review_clusters_are_found() -> None:
    images = replace(collection(MERGED, {0: 0, 3: 1}), earlier=None)
    assert answered(images, n_clusters=4) == (
        [0] * 3 + [1] * 3 + [3] * 3 + [2] * 4,
        {"k": 4, "by": ""},
    )


def test_labels_that_came_later_are_categories_too() -> None:
    assert n_reviewed(collection([3] * 9 + [5] * 4, {})) == 2
    assert n_reviewed(collection([3] * 9 + [5] * 4, {0: 0, 8: 1})) == 3
    assert n_reviewed(collection([-1] * 9 + [5] * 4, {})) == 1
