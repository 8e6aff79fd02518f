"""Names on a file system: a category as the name of a folder, and links to images that never leave their place."""

import hashlib
import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote

from shoal.errors import DataError, ShoalError
from shoal.files import make_folder, writing

Linking = Literal["link", "copy"]
"""'link': a symbolic link, else a hard link, else a copy, whatever the file system can do. 'copy': always a copy."""

FORBIDDEN = '/\0<>:"\\|?*' if os.name == "nt" else "/\0"
"""Characters that no file name may hold here."""

IS_WINDOWS = os.name == "nt"

RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
"""Names that Windows keeps to itself, with any suffix."""

MAX_BYTES = 255
"""Bytes that a name may have; the common file systems agree."""


def folder_names(categories: Sequence[str], *, taken: Iterable[str] = (), folds_case: bool = False) -> dict[str, str]:
    """A folder for each category, no two the same: see `folder_name`.

    Where a name is `taken`, or where the file system does not tell A from a and another category came first, every
    character is written as %XX. Names that are too long are cut, and end with a digest of the whole.
    """
    key, reserved = fold if folds_case else str, {fold(name) for name in taken}
    found, used = dict[str, str](), set[str]()
    for category in sorted(set(categories)):
        name = folder_name(category)
        if key(name) in used or fold(name) in reserved:
            name = "".join(_escape(character, True) for character in category)
        used.add(key(name))
        found[category] = shortened(name)
    return found


def fold(name: str) -> str:
    """What a file system that does not tell A from a makes of a name."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def shortened(name: str) -> str:
    """A name that is not too long: cut, with a digest of the whole, and with its suffix."""
    if len(name.encode("utf-8", "surrogateescape")) <= MAX_BYTES:
        return name
    suffix = PurePosixPath(name).suffix
    suffix = suffix if len(suffix.encode("utf-8", "surrogateescape")) <= 16 else ""
    end = f"~{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}{suffix}"
    kept = name.encode("utf-8", "surrogateescape")[: MAX_BYTES - len(end.encode("utf-8", "surrogateescape"))]
    return kept.decode("utf-8", "ignore") + end


def does_fold_case(folder: Path) -> bool:
    """Whether a folder lies on a file system that does not tell A from a."""
    probe = folder / ".Probe"
    with writing(probe):
        probe.touch()
        try:
            return probe.with_name(".pROBE").exists()
        finally:
            probe.unlink()


def folder_name(category: str) -> str:
    """A category as the name of one folder: untouched, unless the file system forbids a character of it or hides it.

    Then forbidden characters, a leading dot and '%' are written as %XX. `urllib.parse.unquote` gives every category
    back, and two categories never share a folder: a name that only looks escaped ('a%2Fb') is escaped too.
    """
    is_odd = category.strip(".") == "" or _windows_refuses(category)  # '.' and '..' are places, and '' is none
    is_hidden = category.startswith(".")
    if not is_odd and not is_hidden and not set(category) & set(FORBIDDEN) and unquote(category) == category:
        return category
    escaped = "".join(_escape(character, is_odd or (is_hidden and not at)) for at, character in enumerate(category))
    return escaped or "%00"


def _windows_refuses(category: str) -> bool:
    return IS_WINDOWS and (category.endswith((".", " ")) or category.partition(".")[0].casefold() in RESERVED)


def _escape(character: str, always: bool) -> str:
    must = character in FORBIDDEN or character == "%" or always
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8")) if must else character


def inside(root: Path, path: str) -> Path:
    """Where an image of a run lies: inside the folder that its images came from, or an error."""
    file = Path(os.path.normpath(root / path))
    if not file.is_relative_to(root) or file == root:
        raise DataError(f"{path!r}: leads out of {root}, the folder of the run's images; was assignments.csv edited?")
    return file


def original(root: Path, path: str) -> Path:
    """The file of an image of a run: inside the folder that its images came from, or an error."""
    file = inside(root, path)
    if not file.is_file():
        raise DataError(f"{file}: the image is not there any more; give the folder that holds the images as --images")
    return file


def put_all(placed: Sequence[tuple[Path, str]], out: Path, linking: Linking = "link") -> None:
    """Make each name below `out` show its image; what cannot be is refused before the first link is made."""
    key = fold if does_fold_case(out) else str
    seen = dict[str, str]()
    for _, name in placed:
        parts = PurePosixPath(name).parts
        long = next((part for part in parts if len(part.encode("utf-8", "surrogateescape")) > MAX_BYTES), None)
        if long is not None:
            raise DataError(f"{long[:40]}…: the name has more than {MAX_BYTES} bytes; export to imagefolder or csv")
        if key(name) in seen:
            raise DataError(f"{name} and {seen[key(name)]}: would be one file there; choose another place or format")
        seen[key(name)] = name
    for source, name in placed:
        put(source, out / name, linking)


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
