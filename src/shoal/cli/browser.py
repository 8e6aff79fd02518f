"""A page in the browser of whoever sits here, where there is one."""

import os
import subprocess
import sys
from typing import Any


def open_in_browser(address: str) -> bool:
    """Open an address in a browser; False where there is none, such as on a machine without a screen.

    In a process of its own: a browser that is started may stay in the foreground, and print.
    """
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a browser of text would take over the terminal
    command = [sys.executable, "-I", "-c", "import sys, webbrowser; webbrowser.open(sys.stdin.read())"]
    how: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **how)
        assert process.stdin is not None
        with process.stdin as given:  # other accounts can read a command, and not this
            given.write(address)
    except OSError:
        return False
    return True
