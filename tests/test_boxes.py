"""The name of a box is its image with a fragment."""

import pytest

from shoal.boxes import Box, box_name, split_name


def test_a_name_is_split_into_what_it_was_made_of() -> None:
    box = Box(10, 0, 30, 40)
    assert box_name("x/a#1.jpg", box) == "x/a#1.jpg#xywh=10,0,30,40"
    assert split_name("x/a#1.jpg#xywh=10,0,30,40") == ("x/a#1.jpg", box)
    assert box.corners == (10, 0, 40, 40)


@pytest.mark.parametrize(
    "name",
    ["a.jpg", "a#xywh=1,2,3,4.jpg", "a.jpg#xywh=1,2,3", "a.jpg#xywh=-1,2,3,4", "#xywh=1,2,3,4"],
)
def test_other_names_are_whole_images(name: str) -> None:
    assert split_name(name) == (name, None)
