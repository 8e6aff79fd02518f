"""Names on a file system: a category as the name of a folder, and links to images that never leave
their place."""

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
"""'link': a symbolic link, else a hard link, else a copy, whatever the file system can do. 'copy':
always a copy."""

FORBIDDEN = frozenset('/<>:"\\|?*') | frozenset(map(chr, range(32)))
"""Characters that Linux, macOS or Windows lets no folder have in its name: an export is carried
from one to another."""

RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{n}" for port in ("com", "lpt") for n in "123456789¹²³"),
}
"""Names that Windows keeps to itself, with any suffix."""

MAX_BYTES = 255
"""Bytes that a name may have; the common file systems agree."""


def folder_names(categories: Sequence[str], *, taken: Iterable[str] = ()) -> dict[str, str]:
    """A folder for each category, no two the same on a file system that does not tell A from a: see
    `folder_name`.

    Where a name is `taken`, or another category came first, as many characters as it takes are
    written as %XX. Names that are too long are cut, and end with a digest of the whole.
    """
    name_of = dict[str, str]()
    used = {fold(name) for name in taken}
    for category in sorted(set(categories)):
        ways = (folder_name(category, n_escaped) for n_escaped in range(len(category) + 1))
        name = next(
            name for name in ways if fold(name) not in used
        )  # all of it as %XX is the name of no other
        used.add(fold(name))
        name_of[category] = shortened(name)
    return name_of


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
    kept = name.encode("utf-8", "surrogateescape")[
        : MAX_BYTES - len(end.encode("utf-8", "surrogateescape"))
    ]
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


def folder_name(category: str, n_escaped: int = 0) -> str:
    """A category as the name of one folder: untouched, unless a file system forbids it or hides it.

    Then forbidden characters, a leading dot, a dot or space at the end, the first letter of a
    reserved name and '%' are written as %XX, and the first `n_escaped` characters in any case.
    `urllib.parse.unquote` gives every category back, and two categories never share a folder: a
    name that only looks escaped ('a%2Fb') is escaped too.
    """
    is_first_odd = (
        category.startswith(".") or category.partition(".")[0].rstrip(" ").casefold() in RESERVED
    )
    escaped = {*range(max(n_escaped, int(is_first_odd)))}
    if category.endswith((".", " ")):
        escaped.add(len(category) - 1)
    if category and not escaped and not FORBIDDEN & set(category) and unquote(category) == category:
        return category
    return (
        "".join(_escape(character, at in escaped) for at, character in enumerate(category)) or "%00"
    )


def _escape(character: str, always: bool) -> str:
    if not always and character != "%" and character not in FORBIDDEN:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def inside(root: Path, path: str) -> Path:
    """Where an image of a run lies: inside the folder that its images came from, or an error."""
    file = Path(os.path.normpath(root / path))
    if not file.is_relative_to(root) or file == root:
        raise DataError(
            f"{path!r}: leads out of {root}, the folder of the run's images; was assignments.csv "
            "edited?"
        )
    return file


def original(root: Path, path: str) -> Path:
    """The file of an image of a run: inside the folder that its images came from, or an error."""
    file = inside(root, path)
    if not file.is_file():
        raise DataError(
            f"{file}: the image is not there any more; give the folder that holds the images as "
            "--images"
        )
    return file


def put_all(pairs: Sequence[tuple[Path, str]], out: Path, linking: Linking = "link") -> None:
    """Make each name below `out` show its image; what cannot be is refused before the first link is
    made."""
    key = fold if does_fold_case(out) else str
    seen = dict[str, str]()
    for _, name in pairs:
        parts = PurePosixPath(name).parts
        long = next(
            (part for part in parts if len(part.encode("utf-8", "surrogateescape")) > MAX_BYTES),
            None,
        )
        if long is not None:
            raise DataError(
                f"{long[:40]}…: the name has more than {MAX_BYTES} bytes; export to imagefolder "
                "or csv"
            )
        if key(name) in seen:
            raise DataError(
                f"{name} and {seen[key(name)]}: would be one file there; choose another path or "
                "format"
            )
        seen[key(name)] = name
    for source, name in pairs:
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
                except (
                    OSError
                ):  # no links on this file system, or not allowed to make them: try the next way
                    continue
                return
        shutil.copyfile(source, target)
