"""A page in the browser of whoever sits here, where there is one."""

import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_in_browser(page: Path | str) -> bool:
    """Open a file or an address in a browser; False where there is none, such as on a machine without a screen."""
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a browser of text would take over the terminal
    with _silenced():
        try:
            return webbrowser.open(page if isinstance(page, str) else page.resolve().as_uri())
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
