"""Names on a file system: a category as the name of a folder, and links to images that never leave their place."""

import os
import shutil
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from shoal.errors import DataError, ShoalError
from shoal.files import make_folder, writing

Linking = Literal["link", "copy"]
"""'link': a symbolic link, else a hard link, else a copy, whatever the file system can do. 'copy': always a copy."""

FORBIDDEN = '/\0<>:"\\|?*' if os.name == "nt" else "/\0"
"""Characters that no file name may hold here."""


def folder_name(category: str) -> str:
    """A category as the name of one folder: untouched, unless the file system forbids a character of it.

    Then forbidden characters and '%' are written as %XX. `urllib.parse.unquote` gives every category back, and two
    categories never share a folder: a name that only looks escaped ('a%2Fb') is escaped too.
    """
    is_dots = category.strip(".") == ""  # '.' and '..' are places, and '' is none
    if not is_dots and not set(category) & set(FORBIDDEN) and unquote(category) == category:
        return category
    escaped = "".join(_escape(character, is_dots) for character in category)
    return escaped or "%00"


def _escape(character: str, is_dots: bool) -> str:
    must = character in FORBIDDEN or character == "%" or is_dots
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8")) if must else character


def original(root: Path, path: str) -> Path:
    """The file of an image of a run: inside the folder that its images came from, or an error."""
    file = Path(os.path.normpath(root / path))
    if not file.is_relative_to(root) or file == root:
        raise DataError(f"{path!r}: leads out of {root}, the folder of the run's images; was assignments.csv edited?")
    if not file.is_file():
        raise DataError(f"{file}: the image is not there any more; give the folder that holds the images as --images")
    return file


def put(source: Path, target: Path, linking: Linking = "link") -> None:
    """Make `target` show the image `source`, which is neither moved nor changed."""
    make_folder(target.parent)
    with writing(target):
        if os.path.lexists(target):
            raise ShoalError(f"{target}: is there already; export into an empty folder")
        if linking == "link":
            for link in (os.symlink, os.link):
                try:
                    link(source, target)
                except OSError:  # no links on this file system, or not allowed to make them: try the next way
                    continue
                return
        shutil.copyfile(source, target)
