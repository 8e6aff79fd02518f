"""Which files are meant as shards: a file, several by braces and stars, or those in a folder."""

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np

from shoal.data.readers.parquet_shards import holds_images
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.remote import asking, list_remote
from shoal.errors import DataError, MissingError
from shoal.words import count, first_few

SHARD_SUFFIXES = (".tar", ".parquet")
COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000


def is_shards(location: str | os.PathLike[str], image_column: str | None = None) -> bool:
    """Whether this names shards: a tar file, a parquet file with images in it, or several by braces or a star."""
    if Path(location).is_dir():
        return False
    name = bare_name(location)
    where = absolute(location)
    rest = _split(where)[1]
    is_many = BRACES.search(rest) is not None or "*" in rest
    if name.endswith((".tar", *COMPRESSED)) or (is_many and name.endswith(SHARD_SUFFIXES)):
        return True
    return name.endswith(".parquet") and bool(holds_images(str(where), image_column))


def shards_below(folder: Path) -> str | None:
    """The shards in a folder without images, as a pattern: tar files or, where there are none, parquet files.

    Of the latter the first that can be read says whether they hold images; where none can, reading them says so.
    """
    below = sorted(_below(str(folder)))
    for suffix in SHARD_SUFFIXES:
        files = [file for file in below if file.lower().endswith(suffix)]
        said = (holds_images(file) for file in files if suffix == ".parquet")
        hold = next((one for one in said if one is not None), True)
        if files and hold:
            return f"{folder}/*{suffix}"
    return None


def unread_shards(folder: Path, pattern: str) -> tuple[str, ...]:
    """A note on the parquet files with images that lie beside tar shards, where these are read; none where none do."""
    if not pattern.endswith(".tar"):
        return ()
    with suppress(MissingError):  # without pyarrow nobody can say what they hold
        files = [file for file in sorted(_below(str(folder))) if file.lower().endswith(".parquet")]
        if unread := [Path(file).name for file in files if holds_images(file)]:
            files_in_words = count(len(unread), "parquet file")
            return (
                f"{files_in_words} with images beside the tar shards not read: {first_few(unread)}",
            )
    return ()


def bare_name(location: str | os.PathLike[str]) -> str:
    """A location in small letters, an address without what follows its question mark."""
    text = os.fspath(location).lower()
    return text if as_address(location) is None else text.partition("?")[0]


def find_shards(where: Path | Address) -> tuple[list[str], list[str]]:
    """The shards that a pattern stands for, and compressed files beside them that it would stand for if unpacked."""
    fixed, rest = _split(where)
    rests = expand_braces(rest)
    if "*" not in rest:
        return [fixed + one for one in rests], []
    names = set[str]()
    compressed = set[str]()
    for one in rests:
        wanted = _wanted(fixed, one)
        below = _below(fixed + one.partition("*")[0].rpartition("/")[0])
        names |= {file for file in below if wanted.fullmatch(file)}
        compressed |= {
            file for file in below if (plain := _unpacked(file)) and wanted.fullmatch(plain)
        }
    if not names:
        raise DataError(
            f"{where}: matches nothing; give shards that are there, such as 'shards-{{000..012}}.tar'"
        )
    return sorted(names), sorted(compressed)


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern such as `shards-{000..012}.tar` or `{train,test}.tar` stands for."""
    parts = BRACES.split(pattern)
    choices = [[part] if i % 2 == 0 else _choices(part, pattern) for i, part in enumerate(parts)]
    if np.prod([len(one) for one in choices], dtype=float) > MAX_SHARDS:
        raise DataError(
            f"{pattern}: stands for more than {MAX_SHARDS:,} shards; give a smaller range"
        )
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _split(where: Path | Address) -> tuple[str, str]:
    """What stands as it is, and the rest, which may mean several: a file or folder that is there may hold braces."""
    if isinstance(where, Address):
        return "", str(where)
    there = next(str(path) for path in (where, *where.parents) if os.path.exists(path))  # noqa: PTH110
    return there, str(where).removeprefix(there)


def _wanted(fixed: str, rest: str) -> re.Pattern[str]:
    """What a pattern matches: a star stands for slashes too, and the suffix may have capital letters."""
    body, suffix = os.path.splitext(rest)  # noqa: PTH122
    stars = ".*".join(map(re.escape, body.split("*")))
    return re.compile(f"{re.escape(fixed)}{stars}(?i:{re.escape(suffix)})", re.DOTALL)


def _below(start: str) -> list[str]:
    """Every file below a folder or an address; names with a leading dot are left out, as for images."""
    address = as_address(start)
    if address is None:
        folder = start or "/"
        below = [str(file) for file in Path(folder).rglob("*") if file.is_file()]
    else:
        folder = str(address)
        with asking(address):
            below = [f"{address}/{name}" for name, _ in list_remote(address)]
    return [file for file in below if not _is_hidden(file.removeprefix(folder))]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _unpacked(file: str) -> str | None:
    """The name that a compressed tar file would have; None for any other file."""
    end = next((end for end in COMPRESSED if file.lower().endswith(end)), None)
    return None if end is None else f"{file[: -len(end)]}.tar"


def _choices(part: str, pattern: str) -> list[str]:
    """What stands between braces: numbers from one to another, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = numbers.groups()
    if int(last) < int(first) or int(last) - int(first) >= MAX_SHARDS:
        raise DataError(
            f"{pattern}: found the range {part}, expected the smaller number first, such as {{000..012}}"
        )
    width = max(len(first), len(last)) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
