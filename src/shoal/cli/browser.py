"""A page in the browser of whoever sits here, where there is one."""

import os
import subprocess
import sys


def open_in_browser(address: str) -> bool:
    """Open an address in a browser; False where there is none, such as on a machine without a screen.

    In a process of its own: a browser that is started may stay in the foreground, and print.
    """
    has_screen = os.name == "nt" or sys.platform == "darwin"
    if not has_screen and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False  # a browser of text would take over the terminal
    command = [sys.executable, "-I", "-m", "webbrowser", address]  # no module of this folder
    nothing = subprocess.DEVNULL
    try:
        subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    except OSError:
        return False
    return True
