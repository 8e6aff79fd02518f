"""Boxes in images, named by a W3C media fragment: `photos/a.jpg#xywh=10,20,30,40`."""

import os
import re
from typing import NamedTuple

FRAGMENT = re.compile(r"(?s)(.+)#xywh=([0-9]+),([0-9]+),([0-9]+),([0-9]+)")

BOX_COLUMNS = ("x", "y", "width", "height")


class Box(NamedTuple):
    """A rectangle in pixels of an upright image; its left upper corner comes first."""

    x: int
    y: int
    width: int
    height: int

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom."""
        return self.x, self.y, self.x + self.width, self.y + self.height


def box_name(image: str, box: Box) -> str:
    return f"{image}#xywh={','.join(map(str, box))}"


def split_name(name: str) -> tuple[str, Box | None]:
    """Return the image and the box that a name means; None if it is a whole image."""
    found = FRAGMENT.fullmatch(name) if "#" in name else None
    if found is None:
        return name, None
    return found[1], Box(*map(int, found.groups()[1:]))


def split_file(path: str) -> tuple[str, Box | None]:
    """Return the file and the box that a path means; a file that exists is a whole image."""
    file, box = split_name(path)
    if box is not None and os.path.lexists(path):
        return path, None
    return file, box
