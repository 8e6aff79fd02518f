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

ENDED = b"ended"
LEFT = b"left"
"""Last signs: of a process that could not finish, and of one that has."""


def lost(rank: int, n_processes: int) -> str:
    """What a process says that ends because another one has."""
    return (
        f"process {rank} of {n_processes} ends, because another one has ended; see what that one said, then give the "
        "command again (`shoal discover` and `shoal compare` go on with --resume)"
    )


class Heartbeat:
    """A context in which one thread gives signs of life to a store and looks for those of the others; another watches.

    `store` is a connection of its own, with `set` and `get`. A `get` may wait for a machine that is gone, so whoever
    counts does not ask.
    """

    def __init__(self, store: Any, rank: int, n_processes: int) -> None:
        self.store = store
        self.rank = rank
        self.n_processes = n_processes
        self._stop = threading.Event()
        self._talker = threading.Thread(target=self._talk, name="heartbeat", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="heartbeat-watch", daemon=True)
        self._seen: dict[int, tuple[bytes, int]] = {}
        """Of each other process its last sign, and how often in a row it was found."""
        self._found_lost = False
        self._n_waits = 0
        """Looks of the watcher since the store has last answered."""

    def __enter__(self) -> "Heartbeat":
        self.store.set(self._key(self.rank), b"0")
        self._talker.start()
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._watcher.join()
        self._talker.join(BEAT_S)
        if not self._talker.is_alive():  # else the store does not answer
            with contextlib.suppress(RuntimeError):
                self.store.set(self._key(self.rank), LEFT if kind is None else ENDED)

    def _talk(self) -> None:
        n_beats = 0
        while not self._stop.wait(BEAT_S):
            n_beats += 1
            with contextlib.suppress(
                RuntimeError
            ):  # the machine that holds the store does not answer
                self.store.set(self._key(self.rank), str(n_beats).encode())
                lost_ones = [
                    other
                    for other in range(self.n_processes)
                    if other != self.rank and self._is_lost(other)
                ]
                self._found_lost = bool(lost_ones)
                self._n_waits = 0

    def _watch(self) -> None:
        while not self._stop.wait(BEAT_S):
            self._n_waits += 1
            if self._found_lost or self._n_waits > N_MISSED:
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
