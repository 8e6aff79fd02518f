"""Processes started by `torchrun`: ranks, shards, gathers and broadcasts. In a single process every
function is a no-op, so that there is one code path.

Each process sends the others a heartbeat every few seconds, and ends when another is silent. A
process that dies closes its connections, which its peers notice immediately. A machine that loses
its power or its network does not, and a GPU may wait for another forever; the heartbeat covers
both.

This is the only module that imports torch.distributed.
"""

import datetime
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store
from torch.distributed.rendezvous import rendezvous

from shoal.errors import ShoalError

# Seconds between two beats
BEAT_S = 5.0

# Beats in a row that a process may miss. They are counted in beats of this process, so that time in
# which the machine sleeps does not count.
N_MISSED = 9

# Last beats of a process: after an error, and after it has finished
ENDED = "ended"
LEFT = "left"

# Seconds that a process waits for the others to start
JOIN_S = 1800.0

# Seconds that a process waits for a message of another that is alive; the main one may cluster for
# days
MAX_WAIT_S = 7 * 24 * 3600.0


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
        # How often in a row the same beat of each process was read
        self._n_same = [0] * n_processes
        self._found_lost = False
        # Waits of the watcher since the store last answered
        self._n_waits = 0

    def __enter__(self) -> None:
        self._send("0")
        self._sender.start()
        self._watcher.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._watcher.join()
        self._sender.join(BEAT_S)
        if not self._sender.is_alive():  # else the store does not answer
            with suppress(RuntimeError):
                self._send(LEFT if kind is None else ENDED)

    def _send(self, beat: str) -> None:
        self.store.set(f"shoal/alive/{self.rank}", beat)

    def _send_and_read(self) -> None:
        n_beats = 0
        while not self._stop.wait(BEAT_S):
            n_beats += 1
            with suppress(RuntimeError):  # the machine with the store does not answer
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


class ProcessLost(ShoalError):
    """Another process of the group has ended, so this one cannot continue."""

    def __init__(self) -> None:
        super().__init__(lost_message(rank(), world_size()))


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the process group of torchrun (NCCL on CUDA, gloo on the CPU), and leave it at the end.

    Each process of a machine then has its own GPU under the name "cuda". When a process or its
    machine dies, the others end within a minute. A signal of torchrun ends them as Ctrl-C does.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or is_started():
        yield
        return
    if str(device) == "cuda":  # without a number, each process takes its own GPU
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, number, n_processes = next(
            rendezvous("env://", timeout=datetime.timedelta(seconds=JOIN_S))
        )
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=number,
            world_size=n_processes,
            timeout=datetime.timedelta(seconds=MAX_WAIT_S),
        )
    except (RuntimeError, ValueError) as error:
        raise ShoalError(
            f"could not join the process group: {error}; start the command with torchrun"
        ) from error
    try:
        with Heartbeat(store.clone(), number, n_processes), _interrupted_by_torchrun():
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _interrupted_by_torchrun() -> Iterator[None]:
    """Handle SIGTERM, which torchrun sends, as Ctrl-C, so that a message explains how to resume."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _take_gpu(number: int) -> None:
    if number >= torch.cuda.device_count():
        raise ShoalError(
            f"process {number + 1} of this machine has no GPU, torch sees "
            f"{torch.cuda.device_count()}; lower torchrun's --nproc-per-node"
        )
    torch.cuda.set_device(number)


def is_started() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the number of this process, 0 without a group."""
    return dist.get_rank() if is_started() else 0


def world_size() -> int:
    """Return the number of processes, 1 without a group."""
    return dist.get_world_size() if is_started() else 1


def is_main() -> bool:
    """Return whether this process writes files and prints; known from the environment before it has
    joined."""
    return rank() == 0 if is_started() else os.environ.get("RANK", "0") == "0"


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the error of torch when another process is gone into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost from error


@_explained()
def broadcast(value: object, device: torch.device) -> Any:
    """Return the value of the main process, which is pickled, in every process."""
    message = [value]
    if is_started():
        dist.broadcast_object_list(message, src=0, device=device)
    return message[0]


@_explained()
def barrier() -> None:
    if is_started():
        dist.barrier()


def shard(n_rows: int, of: int | None = None) -> slice:
    """Return the contiguous share of `n_rows` rows of this process, or of process `of`; shares
    differ by at most one row."""
    base, extra = divmod(n_rows, world_size())
    number = rank() if of is None else of
    start = number * base + min(number, extra)
    return slice(start, start + base + (number < extra))


def n_local(n_rows: int) -> int:
    """Return how many of `n_rows` rows are in the share of this process."""
    return len(range(n_rows)[shard(n_rows)])


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order, in every process; their numbers may
    differ."""
    if not is_started():
        return rows
    n_rows = torch.tensor([len(rows)], device=rows.device)
    n_each = [torch.empty_like(n_rows) for _ in range(world_size())]
    with _explained():
        dist.all_gather(n_each, n_rows)
        padded = rows.new_zeros((int(max(n_each)), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in n_each]
        dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, n_each, strict=True)])


def take_rows(read: Callable[[Tensor], Tensor], n_rows: int, wanted: Tensor) -> Tensor:
    """Return the rows `wanted` (b,) of an array of `n_rows`, of which each process holds its
    `shard`; all processes call this.

    `read` returns rows of this process's share by their position in it. Each process may want
    different rows, and any number.
    """
    if not is_started():
        return read(wanted)
    stops = [shard(n_rows, of).stop for of in range(world_size())]
    ends = torch.tensor(stops, device=wanted.device)
    holder = torch.searchsorted(ends, wanted, right=True)  # (b,) the process that holds each
    order = holder.argsort(stable=True)
    n_wanted = torch.bincount(holder, minlength=world_size())  # (P,) from each process
    one_each = [1] * world_size()
    from_each = n_wanted.tolist()
    to_each = _exchange(n_wanted, one_each, one_each).tolist()
    requested = _exchange(wanted[order], from_each, to_each)
    rows = _exchange(read(requested - shard(n_rows).start), to_each, from_each)
    return torch.empty_like(rows).index_copy_(0, order, rows)


def _exchange(rows: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
    """Send `to_each` rows to each process, in their order, and return the `from_each` rows that
    each sends."""
    received = rows.new_empty((sum(from_each), *rows.shape[1:]))
    with _explained():
        dist.all_to_all_single(received, rows.contiguous(), from_each, to_each)
    return received


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, in every process."""
    if not is_started():
        return value
    total = value.clone()
    with _explained():
        dist.all_reduce(total)
    return total
