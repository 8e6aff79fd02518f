"""Which files are meant as shards: a file, several by braces and stars, or those in a folder."""

import itertools
import math
import os
import re
from pathlib import Path

from shoal.data.readers.folders import is_hidden
from shoal.data.readers.parquet_shards import holds_images
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.remote import asking, list_remote
from shoal.errors import DataError

SHARD_SUFFIXES = (".tar", ".parquet")
COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000


def is_shards(location: str | os.PathLike[str], image_column: str | None = None) -> bool:
    """Whether this names shards: a tar file, a parquet file with images in it, or several by
    braces or a star."""
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
    """The shards in a folder without images, as a pattern: tar files or, where there are none,
    parquet files.

    Of the latter the first that can be read says whether they hold images; where none can, reading
    them says so.
    """
    below = sorted(_below(str(folder)))
    if any(file.lower().endswith(".tar") for file in below):
        return f"{folder}/*.tar"
    parquets = [file for file in below if file.lower().endswith(".parquet")]
    known = (holds_images(file) for file in parquets)
    holds = next((holds for holds in known if holds is not None), True)
    if parquets and holds:
        return f"{folder}/*.parquet"
    return None


def bare_name(location: str | os.PathLike[str]) -> str:
    """A location in small letters, an address without what follows its question mark."""
    text = os.fspath(location).lower()
    if as_address(location) is not None:
        text = text.partition("?")[0]
    return text


def find_shards(where: Path | Address) -> tuple[list[str], list[str]]:
    """The shards that a pattern stands for, and compressed files beside them that it would stand
    for if unpacked."""
    fixed, rest = _split(where)
    rests = expand_braces(rest)
    if "*" not in rest:
        return [fixed + one for one in rests], []
    names = set[str]()
    compressed = set[str]()
    for one in rests:
        wanted = _wanted(fixed, one)
        for file in _below(fixed + one.partition("*")[0].rpartition("/")[0]):
            if wanted.fullmatch(file):
                names.add(file)
            elif wanted.fullmatch(_unpacked(file)):
                compressed.add(file)
    if not names:
        raise DataError(
            f"{where}: matches nothing; give shards that are there, such as "
            f"'shards-{{000..012}}.tar'"
        )
    return sorted(names), sorted(compressed)


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern such as `shards-{000..012}.tar` or `{train,test}.tar` stands
    for."""
    choices = [[part] for part in BRACES.split(pattern)]
    choices[1::2] = [_choices(part, pattern) for (part,) in choices[1::2]]  # those in braces
    if math.prod(map(len, choices)) > MAX_SHARDS:
        raise DataError(
            f"{pattern}: stands for more than {MAX_SHARDS:,} shards; give a smaller range"
        )
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _split(where: Path | Address) -> tuple[str, str]:
    """What stands as it is, and the rest, which may mean several: a file or folder that is there
    may hold braces."""
    if isinstance(where, Address):
        return "", str(where)
    there = next(str(path) for path in (where, *where.parents) if path.exists())
    return there, str(where).removeprefix(there)


def _wanted(fixed: str, rest: str) -> re.Pattern[str]:
    """What a pattern matches: a star stands for slashes too, and the suffix may have capital
    letters."""
    body, suffix = os.path.splitext(rest)  # noqa: PTH122
    stars = ".*".join(map(re.escape, body.split("*")))
    return re.compile(f"{re.escape(fixed)}{stars}(?i:{re.escape(suffix)})", re.DOTALL)


def _below(start: str) -> list[str]:
    """Every file below a folder or an address; names with a leading dot are left out, as for
    images."""
    address = as_address(start)
    if address is None:
        folder = start or "/"
        below = [str(file) for file in Path(folder).rglob("*") if file.is_file()]
    else:
        folder = str(address)
        with asking(address):
            below = [f"{address}/{name}" for name, _ in list_remote(address)]
    return [file for file in below if not is_hidden(file.removeprefix(folder))]


def _unpacked(file: str) -> str:
    """The name that a compressed tar file would have unpacked; that of any other file as it is."""
    for suffix in COMPRESSED:
        if file.lower().endswith(suffix):
            return f"{file[: -len(suffix)]}.tar"
    return file


def _choices(part: str, pattern: str) -> list[str]:
    """What stands between braces: numbers from one to another, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = numbers.groups()
    if int(last) < int(first) or int(last) - int(first) >= MAX_SHARDS:
        raise DataError(
            f"{pattern}: found the range {part}, expected the smaller number first, such as "
            f"{{000..012}}"
        )
    width = max(len(first), len(last)) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
