"""Ctrl-C while training goes on: once stops it and keeps what there is, twice quits."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from shoal.distributed import is_started

STOPPING = "\nstopping, with the best answer so far; Ctrl-C once more quits at once\n"


@contextmanager
def ctrl_c_stops() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C do no more than answer this with True; the second one interrupts.

    Where there are several processes, or this is not the main thread, Ctrl-C does what it always does.
    """
    asked: list[int] = []
    if is_started() or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)  # the next one interrupts
        asked.append(number)
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, STOPPING.encode())  # print might already be in the middle of a line

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
