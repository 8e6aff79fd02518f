"""Errors that a user can cause, and their exit codes.

    ShoalError                 1  failure
    ├── UsageError             2  an argument, flag or setting that cannot be used
    │   └── UnknownName        2  a name that is not known
    ├── DataError              3  images, labels or embeddings that cannot be used
    │   ├── TooFewDistinct     3  fewer distinct embeddings than clusters
    │   └── NotInRun           3  something that a run does not contain
    ├── Diverged               1  a training run whose loss is NaN or infinite
    └── MissingError           4  a package, weights or a device that is missing

Every message says where the error is, what was found, what was expected and what to do. Messages
name options as on the command line; outside of it, `name_arguments` replaces them by Python's
arguments. Our own mistakes are `assert`s.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# Python's argument of each option; that of any other one has its name
ARGUMENTS = {
    "resume": "resume=True",
    "force": "force=True",
    "train": "train=True",
    "no-train": "train=False",
    "allow-missing": "allow_missing=True",
    "whole-images": "whole_images=True",
    "set": "changes",
}

_on_command_line = False


@contextmanager
def command_line() -> Iterator[None]:
    """Leave the options in messages as they are typed on the command line."""
    global _on_command_line
    before = _on_command_line
    _on_command_line = True
    try:
        yield
    finally:
        _on_command_line = before


def name_arguments(text: str) -> str:
    """Replace the options in a message by Python's arguments: `--force` by `force=True`.

    Commands in backticks, and all messages on the command line, remain as they are.
    """
    if _on_command_line:
        return text
    parts = re.split("(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!\S)--([a-z][a-z-]*)", _argument, part) for part in parts[::2]]
    return "".join(parts)


def _argument(option: re.Match[str]) -> str:
    return ARGUMENTS.get(option[1], option[1].replace("-", "_"))


class ShoalError(Exception):
    """Base class of all errors that a user can cause."""

    exit_code = 1

    def __str__(self) -> str:
        return name_arguments(super().__str__())


# scikit-learn and its callers expect a ValueError for a bad argument or bad data.
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
    """Fewer distinct embeddings than clusters: copies, or a collapsed training run."""


class NotInRun(DataError):
    """Something that a run does not contain; the report shows the message in its place."""


class Diverged(ShoalError):
    """A training run whose loss or gradient is not finite; with the same settings, it would diverge
    again."""


class MissingError(ShoalError):
    """A package, weights or a device that is missing; the message says how to get it."""

    exit_code = 4


def missing_package(package: str, what: str) -> MissingError:
    """Return the error for a missing optional package, with the command that installs it."""
    return MissingError(
        f"{what} needs the package {package!r}, which is not installed; pip install {package}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known names, then all of them."""
    names = sorted(known, key=lambda each: re.sub(r"\d+", lambda number: number[0].zfill(9), each))
    near = get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"{hint} known: {', '.join(names)}"
