"""Which files are meant as shards: a file, several by braces and stars, or those in a folder."""

import itertools
import os
import re
from pathlib import Path

from shoal.data.readers.folders import SHARD_SUFFIXES, is_hidden
from shoal.data.readers.parquet_shards import holds_images
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.remote import asking, list_remote
from shoal.errors import DataError

COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000


def is_shards(location: str | os.PathLike[str], image_column: str | None = None) -> bool:
    """Whether this names shards: a tar file, a parquet file with images in it, or several by
    braces or a star."""
    if Path(location).is_dir():
        return False
    where = absolute(location)
    name = bare_name(location)
    if name.endswith((".tar", *COMPRESSED)):
        return True
    is_many = re.search(r"[{*]", _split(where)[1]) is not None
    return name.endswith(SHARD_SUFFIXES) and (is_many or holds_images(str(where), image_column))


def bare_name(location: str | os.PathLike[str]) -> str:
    """A location in small letters, an address without what follows its question mark."""
    text = os.fspath(location).lower()
    if as_address(location) is not None:
        text = text.partition("?")[0]
    return text


def find_shards(where: Path | Address) -> list[str]:
    """The shards that a pattern stands for, with compressed ones, which nobody can read."""
    fixed, rest = _split(where)
    rests = expand_braces(rest)
    if "*" not in rest:
        return [fixed + one for one in rests]
    names = set[str]()
    for one in rests:
        body, suffix = os.path.splitext(one)  # noqa: PTH122
        stars = ".*".join(map(re.escape, body.split("*")))  # a star stands for slashes too
        suffixes = re.escape(suffix)
        if suffix.lower() == ".tar":
            suffixes = "|".join(map(re.escape, [suffix, *COMPRESSED]))
        wanted = re.compile(f"{re.escape(fixed)}{stars}(?i:{suffixes})", re.DOTALL)
        below = _files_below(fixed + one.partition("*")[0].rpartition("/")[0])
        names |= {file for file in below if wanted.fullmatch(file)}
    if not names:
        raise DataError(
            f"{where}: matches nothing; give shards that are there, such as "
            f"'shards-{{000..012}}.tar'"
        )
    return sorted(names)


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern such as `shards-{000..012}.tar` or `{train,test}.tar` stands
    for."""
    parts = BRACES.split(pattern)
    choices = [[part] for part in parts]
    choices[1::2] = [_choices(part, pattern) for part in parts[1::2]]  # those in braces
    names = [
        "".join(chosen) for chosen in itertools.islice(itertools.product(*choices), MAX_SHARDS)
    ]
    if len(names) == MAX_SHARDS:
        raise DataError(
            f"{pattern}: stands for {MAX_SHARDS:,} shards or more; give a smaller range"
        )
    return names


def _choices(part: str, pattern: str) -> list[str]:
    """What stands between braces: numbers from one to another, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = numbers.groups()
    if not 0 <= int(last) - int(first) < MAX_SHARDS:
        raise DataError(
            f"{pattern}: found the range {part}, expected the smaller number first, such as "
            f"{{000..012}}"
        )
    width = 0
    if first.startswith("0"):
        width = max(len(first), len(last))
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _split(where: Path | Address) -> tuple[str, str]:
    """What stands as it is, and the rest, which may mean several: a file or folder that is there
    may hold braces."""
    if isinstance(where, Address):
        return "", str(where)
    there = next(str(path) for path in (where, *where.parents) if path.exists())
    return there, str(where).removeprefix(there)


def _files_below(start: str) -> list[str]:
    """Every file below a folder or an address, hidden ones left out."""
    address = as_address(start)
    if address is None:
        folder = start or "/"
        below = [str(file) for file in Path(folder).rglob("*") if file.is_file()]
    else:
        folder = str(address)
        with asking(address):
            below = [f"{address}/{name}" for name, _ in list_remote(address)]
    return [file for file in below if not is_hidden(file.removeprefix(folder))]
