"""A page in the browser of whoever sits here, where there is one."""

import html
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

LEADS = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>shoal review</title>
<p><a href="{address}">Open the review</a></p>
</html>
"""


def open_privately(address: str, kept: ExitStack) -> bool:
    """Open an address that has a secret in a browser; False where that cannot be.

    Every account of a machine can read the command line of a browser, so that names a file which leads to the address
    and which only this account can read, until `kept` is closed.
    """
    try:
        return open_in_browser(kept.enter_context(leading_to(address)))
    except OSError:  # no place for the file
        return False


@contextmanager
def leading_to(address: str) -> Iterator[Path]:
    """A file for this account alone that leads a browser to an address."""
    with TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as folder:  # of mode 0700
        page = Path(folder) / "review.html"
        page.touch(mode=0o600, exist_ok=False)
        page.write_text(LEADS.format(address=html.escape(address)), encoding="utf-8")
        yield page


def open_in_browser(page: Path) -> bool:
    """Open a file in a browser; False where there is none, such as on a machine without a screen."""
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a browser of text would take over the terminal
    with _silenced():
        try:
            return webbrowser.open(page.resolve().as_uri())
        except webbrowser.Error:
            return False


@contextmanager
def _silenced() -> Iterator[None]:
    """Let no process that is started here print to the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        yield
    finally:
        for descriptor, file in zip((1, 2), kept, strict=True):
            os.dup2(file, descriptor)
        for file in (*kept, nothing):
            os.close(file)
