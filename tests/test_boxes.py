"""The name of a box is its image with a fragment; if a file has that name, it is an image."""

from pathlib import Path

import pytest

from shoal.boxes import Box, box_name, split_file, split_name


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


def test_a_file_that_is_named_like_a_box_is_an_image(tmp_path: Path) -> None:
    name = f"{tmp_path}/a.jpg#xywh=1,2,3,4"
    assert split_file(name) == (f"{tmp_path}/a.jpg", Box(1, 2, 3, 4))
    Path(name).touch()
    assert split_file(name) == (name, None)
