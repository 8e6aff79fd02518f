"""Network addresses as paths, and checks of the names of images."""

import os
import re
from pathlib import Path, PurePosixPath

from shoal.files import absolute_path
from shoal.text import shown

ADDRESS = re.compile(r"(https?|ftp|s3|gs|az|hf|ssh|sftp|file):/{1,2}\w", re.IGNORECASE)
READABLE = ("s3", "gs", "https", "http", "hf")
"""Schemes that can be read."""


class Address(PurePosixPath):
    """An address as a path, with a name, a suffix and a parent; written with both slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    @property
    def scheme(self) -> str:
        """The part before the colon."""
        return str(self).partition(":")[0]

    @property
    def suffix(self) -> str:
        """The suffix of the file in lower case, without a query."""
        return PurePosixPath(self.name.partition("?")[0]).suffix.lower()


Location = str | os.PathLike[str]
"""A local path or an address."""

Place = Path | Address
"""An absolute local path, or an address."""


def as_address(location: Location) -> Address | None:
    """Return an address, or None for a local path; a `Path` of an address has lost a slash."""
    text = os.fspath(location)
    if not ADDRESS.match(text) or Path(location).exists():
        return None
    scheme, _, rest = text.partition(":")
    return Address(f"{scheme.lower()}:/{rest.lstrip('/')}")


def absolute(location: Location) -> Place:
    """Return an address unchanged, or the absolute path of a local file."""
    return as_address(location) or absolute_path(location)


def why_unfit(name: str) -> str | None:
    """Return why a name in a store or shard cannot be the name of an image, or None."""
    if not is_utf8(name) or shown(name) != name:
        return "the name is not UTF-8, or contains control characters"
    has_drive = re.match(r"[A-Za-z]:[/\\]", name) is not None
    if has_drive or not set(name.split("/")).isdisjoint({"", ".", ".."}):
        return "the name leads out of the collection, or has an empty part"
    return None


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: undecodable file names cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
