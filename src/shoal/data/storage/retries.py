"""Tries: how often something on a network is asked for again, how long is waited between, and what is given up at once.

This is the only place that decides it; packages below are told to try once.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import UsageError

LOST = "the connection was lost"
"""How the reason begins where a connection failed as often as it may."""

TRANSIENT_STATUS = (408, 425, 429)
"""Answers of a web server below 500 that may be others a moment later."""

PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,
)
"""What trying again does not change."""

CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
"""Errors of the stores' packages where nobody has said who asks."""

Result = TypeVar("Result")


class Lost(OSError):
    """Tried as often as it may be, and failed each time; the message says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """How often, and how long between."""

    n_tries: int = 5
    """Times that something is asked for before it counts as lost; $SHOAL_TRIES."""
    wait_s: float = 0.5
    """Seconds before the second try; each further wait is twice as long; $SHOAL_TRY_WAIT_S."""

    @classmethod
    def from_environment(cls) -> "Tries":
        """The defaults, or what the environment says."""
        n_tries = _number("SHOAL_TRIES", cls().n_tries, least=1)
        return cls(n_tries=int(n_tries), wait_s=_number("SHOAL_TRY_WAIT_S", cls().wait_s, least=0))


def tried(ask: Callable[[], Result], tries: Tries | None = None) -> Result:
    """What `ask` returns; where the connection fails, it is asked again after a while, as often as it may be."""
    tries = tries or Tries.from_environment()
    for n_failed in range(1, tries.n_tries + 1):
        try:
            return ask()
        except Exception as raised:
            error = _behind(raised)
            if is_permanent(error):
                if error is raised:
                    raise
                raise error from raised
            if n_failed == tries.n_tries:
                times = "once" if n_failed == 1 else f"{n_failed} times"
                raise Lost(f"{LOST} (tried {times}): {in_words(error)}") from raised
            time.sleep(tries.wait_s * 2 ** (n_failed - 1))
    raise AssertionError


def _behind(error: Exception) -> Exception:
    """What is behind 'not found', which fsspec says of whatever goes wrong at a web server."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    is_web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, OSError)
    return cause if is_web and getattr(cause, "status", None) not in (404, 410) else error


def is_permanent(error: Exception) -> bool:
    """Whether asking again is useless: it is not there, not allowed, or nobody has said who asks."""
    status = getattr(error, "status", None)  # of a web server
    if isinstance(status, int):
        return 400 <= status < 500 and status not in TRANSIENT_STATUS
    return isinstance(error, (*PERMANENT, Lost)) or is_about_credentials(error)


def is_about_credentials(error: Exception) -> bool:
    """Whether the store's package does not know who asks."""
    return any(kind.__name__ in CREDENTIALS for kind in type(error).__mro__)


def in_words(error: Exception) -> str:
    """An error on one line, its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _number(variable: str, usual: float, *, least: float) -> float:
    given = os.environ.get(variable) or str(usual)
    try:
        number = float(given)
    except ValueError:
        number = least - 1
    if not least <= number < float("inf"):
        raise UsageError(f"{variable}: found {given!r}, expected a number of {least:g} or more")
    return number
