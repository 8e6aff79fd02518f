"""Addresses: what lies on a network, written as a path, and which names are fit to be names of
images."""

import os
import re
from pathlib import Path, PurePosixPath

from shoal.files import absolute_path
from shoal.text import shown

ADDRESS = re.compile(r"(https?|ftp|s3|gs|az|hf|ssh|sftp|file):/{1,2}\w", re.IGNORECASE)
READABLE = ("s3", "gs", "https", "http", "hf")
"""Schemes that are read; others are refused with what to do."""


class Address(PurePosixPath):
    """An address as a path: it has a name, a suffix and a parent, and is written with both
    slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    @property
    def scheme(self) -> str:
        """What stands before the colon."""
        return str(self).partition(":")[0]

    @property
    def suffix(self) -> str:
        """The suffix of the file, in small letters, without what follows a question mark."""
        return PurePosixPath(self.name.partition("?")[0]).suffix.lower()


def as_address(location: str | os.PathLike[str]) -> Address | None:
    """The address that this is, or None for a path on this machine; a `Path` made of an address
    has lost a slash."""
    text = os.fspath(location)
    if not ADDRESS.match(text) or Path(location).exists():
        return None
    scheme, _, rest = text.partition(":")
    return Address(f"{scheme.lower()}:/{rest.lstrip('/')}")


def absolute(location: str | os.PathLike[str]) -> Path | Address:
    """An address as it is, a path on this machine from its root on."""
    return as_address(location) or absolute_path(location)


def why_unfit(name: str) -> str | None:
    """Why a name that a store or a shard gives cannot be the name of an image, which tables and
    folders will hold."""
    if not is_utf8(name):
        return "the name is not UTF-8"
    if shown(name) != name:
        return "the name holds characters that cannot be seen"
    if name.startswith("/") or re.match(r"[A-Za-z]:[/\\]", name):
        return "the name starts at the root of a file system"
    if not set(name.split("/")).isdisjoint({"", ".", ".."}):
        return "the name leads out of the collection, or has an empty part"
    return None


def is_utf8(text: str) -> bool:
    """Whether a text is no mere bytes: no table or page could ever hold those."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
