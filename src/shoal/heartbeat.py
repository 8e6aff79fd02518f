"""Signs of life between processes: each gives one every few seconds, and ends when another has fallen silent.

A process that dies closes its connections, which those that talk to it notice at once. A machine that loses its power
or its network closes nothing, and neither does a GPU that waits for another; for these there is this.
"""

import contextlib
import os
import sys
import threading
from types import TracebackType
from typing import Any

BEAT_S = 5.0
"""Seconds between two signs of life."""

N_MISSED = 9
"""Signs in a row that a process may miss, by the clock of whoever counts: a computer that slept has missed none."""

FAILED = 1
"""The exit code of a process that has lost another."""

ENDED, LEFT = b"ended", b"left"
"""Last signs: of a process that could not finish, and of one that has."""


def lost(rank: int, n_processes: int) -> str:
    """What a process says that ends because another one has."""
    return (
        f"process {rank} of {n_processes} ends, because another one has ended; see what that one said, then give the "
        "command again (`shoal discover` and `shoal compare` go on with --resume)"
    )


class Heartbeat:
    """A context in which a thread gives signs of life to a store, and looks for those of the others.

    `store` is a connection of its own, with `set` and `get`. The first look waits until every process has begun.
    """

    def __init__(self, store: Any, rank: int, n_processes: int) -> None:
        self.store, self.rank, self.n_processes = store, rank, n_processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._seen: dict[int, tuple[bytes, int]] = {}
        """Of each other process its last sign, and how often in a row it was found."""

    def __enter__(self) -> "Heartbeat":
        self.store.set(self._key(self.rank), b"0")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(RuntimeError):  # whoever holds the store may have gone already
            self.store.set(self._key(self.rank), LEFT if kind is None else ENDED)

    def _beat(self) -> None:
        n_beats = n_failures = 0
        while not self._stop.wait(BEAT_S):
            n_beats += 1
            try:
                self.store.set(self._key(self.rank), str(n_beats).encode())
                found = [self._is_lost(other) for other in range(self.n_processes) if other != self.rank]
                is_lost = any(found)
                n_failures = 0
            except RuntimeError:  # the machine that holds the store does not answer
                n_failures += 1
                is_lost = n_failures > N_MISSED
            if is_lost and not self._stop.is_set():
                end_process(lost(self.rank, self.n_processes))

    def _is_lost(self, other: int) -> bool:
        sign = bytes(self.store.get(self._key(other)))
        before, n_times = self._seen.get(other, (b"", 0))
        n_times = n_times + 1 if sign == before else 0
        self._seen[other] = (sign, n_times)
        return sign == ENDED or (sign != LEFT and n_times > N_MISSED)

    def _key(self, rank: int) -> str:
        return f"shoal/alive/{rank}"


def end_process(why: str) -> None:
    """Say why, and end at once: the main thread may wait for another process in a call that nothing interrupts."""
    print(f"error: {why}", file=sys.stderr, flush=True)
    os._exit(FAILED)
