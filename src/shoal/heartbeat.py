"""A heartbeat between processes: each sends one every few seconds, and ends when another is silent.

A process that dies closes its connections, which its peers notice immediately. A machine that loses
its power or its network does not, and a GPU may wait for another forever; the heartbeat covers
both.
"""

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

# Seconds between two beats
BEAT_S = 5.0

# Beats in a row that a process may miss. They are counted in beats of this process, so that time in
# which the machine sleeps does not count.
N_MISSED = 9

# Last beats of a process: after an error, and after it has finished
ENDED = "ended"
LEFT = "left"


def lost_message(rank: int, n_processes: int) -> str:
    return (
        f"process {rank} of {n_processes} ends because another process has ended; see the error of "
        "that one, then run the command again (`shoal discover` and `shoal compare` with --resume)"
    )


class Heartbeat:
    """A context in which one thread sends beats and reads those of the others, while another thread
    watches the first.

    `store` is a separate connection. Reading may block when a machine is gone, so the watcher does
    not read.
    """

    def __init__(self, store: "Store", rank: int, n_processes: int) -> None:
        self.store = store
        self.rank = rank
        self.n_processes = n_processes
        self._stop = threading.Event()
        self._sender = threading.Thread(target=self._send_and_read, daemon=True)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._beats: dict[int, str] = {}
        self._n_same = [0] * n_processes
        """How often in a row the same beat of each process was read."""
        self._found_lost = False
        self._n_waits = 0
        """Waits of the watcher since the store last answered."""

    def __enter__(self) -> None:
        self._send("0")
        self._sender.start()
        self._watcher.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._watcher.join()
        self._sender.join(BEAT_S)
        if not self._sender.is_alive():  # else the store does not answer
            with contextlib.suppress(RuntimeError):
                self._send(LEFT if kind is None else ENDED)

    def _send(self, beat: str) -> None:
        self.store.set(f"shoal/alive/{self.rank}", beat)

    def _send_and_read(self) -> None:
        n_beats = 0
        while not self._stop.wait(BEAT_S):
            n_beats += 1
            with contextlib.suppress(RuntimeError):  # the machine with the store does not answer
                self._send(str(n_beats))
                others = (other for other in range(self.n_processes) if other != self.rank)
                self._found_lost = any([self.is_lost(other) for other in others])
                self._n_waits = 0

    def _watch(self) -> None:
        while not self._stop.wait(BEAT_S):
            self._n_waits += 1
            if self._found_lost or self._n_waits > N_MISSED:
                print(
                    f"error: {lost_message(self.rank, self.n_processes)}",
                    file=sys.stderr,
                    flush=True,
                )
                # The main thread may wait for another process in a call that nothing interrupts.
                os._exit(1)

    def is_lost(self, other: int) -> bool:
        """Return whether another process has failed, or is silent for too long."""
        beat = bytes(self.store.get(f"shoal/alive/{other}")).decode()
        if beat == self._beats.get(other):
            self._n_same[other] += 1
        else:
            self._n_same[other] = 0
        self._beats[other] = beat
        return beat == ENDED or (beat != LEFT and self._n_same[other] > N_MISSED)
