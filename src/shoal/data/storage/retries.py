"""Ask a store again where the connection fails.

This is the only place that decides it; packages below are told to try once.
"""

import os
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import UsageError, missing_package

N_TRIES = 5
"""Times that something is asked for before it counts as lost; $SHOAL_TRIES."""

WAIT_S = 0.5
"""Seconds before the second try; each further wait is twice as long; $SHOAL_TRY_WAIT_S."""

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


def tried(ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns, asking again after a while where the connection fails."""
    try:
        import tenacity
    except ImportError as error:
        raise missing_package("tenacity", "remote", "reading from a network") from error
    n_tries = int(_number("SHOAL_TRIES", N_TRIES, least=1))
    wait_s = _number("SHOAL_TRY_WAIT_S", WAIT_S, least=0)
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(n_tries),
        wait=tenacity.wait_exponential(multiplier=wait_s),
        retry=tenacity.retry_if_exception(_is_transient),
    )
    try:
        return retrying(ask)
    except tenacity.RetryError as failed:
        cause = _behind(failed.last_attempt.exception())
        times = "once" if n_tries == 1 else f"{n_tries} times"
        raise Lost(f"{LOST} (tried {times}): {in_words(cause)}") from cause
    except FileNotFoundError as error:
        raise _behind(error) from error.__cause__


def _behind(error: BaseException | None) -> BaseException:
    """What is behind 'not found', which fsspec says of whatever goes wrong at a web server."""
    assert error is not None
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    is_web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, OSError)
    if is_web and getattr(cause, "status", None) not in (404, 410):
        return cause
    return error


def _is_transient(raised: BaseException) -> bool:
    """Whether asking again may help: it is there, allowed, and somebody has said who asks."""
    error = _behind(raised)
    status = getattr(error, "status", None)  # of a web server
    if isinstance(status, int):
        return not 400 <= status < 500 or status in TRANSIENT_STATUS
    if not isinstance(error, Exception):  # Ctrl-C
        return False
    return not isinstance(error, (*PERMANENT, Lost)) and not is_about_credentials(error)


def is_about_credentials(error: BaseException) -> bool:
    """Whether the store's package does not know who asks."""
    return any(kind.__name__ in CREDENTIALS for kind in type(error).__mro__)


def in_words(error: BaseException) -> str:
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
