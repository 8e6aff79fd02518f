"""What can go wrong through no fault of the program, and the exit code each has.

    ShoalError                 1  failure
    ├── UsageError             2  an argument, flag or setting that cannot be used
    │   └── UnknownName        2  a name that is not known
    ├── DataError              3  images, labels or embeddings that cannot be used
    │   └── TooFewDistinct     3  embeddings of which fewer differ than clusters are asked for
    ├── Diverged               1  a training whose loss is no number any more
    └── MissingError           4  a package or weights that are not here

Every message says where, what was found, what was expected and what to do. Mistakes of our own are
`assert`s.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class ShoalError(Exception):
    """Base of everything a user can cause."""

    exit_code = 1


# scikit-learn and its callers expect ValueError for a bad argument or bad data, so both are one.
class UsageError(ShoalError, ValueError):
    """An argument, flag or setting that cannot be used."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that is not known; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} {name!r}{did_you_mean(name, known)}")


class DataError(ShoalError, ValueError):
    """Images, labels or embeddings that cannot be used."""

    exit_code = 3


class TooFewDistinct(DataError):
    """Fewer distinct embeddings than clusters: copies, or a training that has collapsed."""


class Diverged(ShoalError):
    """A training whose loss or gradient is not finite; the same settings would diverge again."""


class MissingError(ShoalError):
    """A package or weights that are not on this machine; the message says how to get them."""

    exit_code = 4


def missing_package(package: str, what: str) -> MissingError:
    """The error for an optional package that is missing, with the command that installs it."""
    return MissingError(
        f"{what} needs the package {package!r}, which is not installed; pip install {package}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known names, then all of them."""
    names = sorted(known, key=_by_number)
    near = get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"{hint} known: {', '.join(names)}"


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort '2' before '10', and 'table2' before 'table10'."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
