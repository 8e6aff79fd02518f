"""Errors that a user can cause, with their exit codes, and the words of messages.

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
arguments. Control characters in names become visible. Our own mistakes are `assert`s.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
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

PLURALS = {
    "box": "boxes",
    "category": "categories",
    "class": "classes",
    "is": "are",
    "has": "have",
    "needs": "need",
}

# Characters that change the writing direction, so that gnp.exe is displayed as exe.png
DIRECTION_CODES = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}

# Unicode categories of invisible characters: control, surrogate, private, unassigned, line and
# paragraph
INVISIBLE = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")


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
    parts[::2] = [
        re.sub(
            r"(?<!\S)--([a-z][a-z-]*)",
            lambda option: ARGUMENTS.get(option[1], option[1].replace("-", "_")),
            part,
        )
        for part in parts[::2]
    ]
    return "".join(parts)


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


def count(n: int, noun: str) -> str:
    """Return a number with its noun: '1 image', '1,234 images'."""
    return f"{n:,} {plural(n, noun)}"


def plural(n: int, word: str) -> str:
    """Return the plural of a word, or of the last one of several, unless `n` is 1."""
    if n == 1:
        return word
    before, space, last = word.rpartition(" ")
    return f"{before}{space}{PLURALS.get(last, f'{last}s')}"


def folded(name: str) -> str:
    """Return a name without what people do not tell apart: case, spaces, hyphens, underscores."""
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).lower()).strip()


def first_few(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Return the first names, with an ellipsis if there are more: 'a, b, c, …'."""
    named = list(names[:most])
    if len(names) > most:
        named.append("…")
    return separator.join(named)


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: 'cms', 'cms and gcd', 'cms, gcd and pim'."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def percent(share: float) -> str:
    """Return a share in percent, '81.2 %'; a dash for NaN."""
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f} %"


def number(value: float, digits: int = 2) -> str:
    """Return a number with fixed decimals; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units: '2 h 05 min', '3 min 20 s', '4.2 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def span(values: Sequence[int]) -> str:
    """Return the range of values: '9–12', or '9' if they are all the same."""
    low = min(values)
    high = max(values)
    if low == high:
        return f"{low}"
    return f"{low}–{high}"


def shown(text: str, longest: int | None = None) -> str:
    """Return text with every invisible character replaced by a visible one.

    A line break becomes ␊, an escape ␛, a change of the writing direction its code, any other
    control character �. The middle of a text that is longer than `longest` becomes an ellipsis, so
    that a file keeps its suffix.
    """
    if not text.isprintable():
        text = "".join(_visible(letter) for letter in text)
    if longest is None or len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _visible(letter: str) -> str:
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block draws each of these
    if code in DIRECTION_CODES:
        return f"‹U+{code:04X}›"
    if unicodedata.category(letter) in INVISIBLE:
        return "\N{REPLACEMENT CHARACTER}"
    return letter


def one_line(error: BaseException, longest: int | None = None) -> str:
    """Return the message of an error on one line, or the name of its class if it has none."""
    return " ".join(str(error).split())[:longest] or type(error).__name__
