"""Several processes as one: rank, shards, gathers, calls. Alone, every call is a no-op, so there is
one code path.

Processes are started by `torchrun`, whose environment variables `processes` reads; nothing else
sets them up. This is the only file that imports torch.distributed.

The main process leads: while the others wait for its next word (`flag_from_main`), it can have them
take part in a function (`tell_others`), which then runs in all processes at once.
"""

import datetime
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from shoal.errors import ShoalError
from shoal.heartbeat import Heartbeat, lost

CALL = 2
"""The main process's word for: a function is to be called now. Its other words are flags, 0 and 1.
"""

JOIN_S = 1800.0
"""How long a process waits for the others to start."""

MAX_WAIT_S = 7 * 24 * 3600.0
"""How long one waits for a word of another that is alive: the main one may decode or cluster for
days."""

Result = TypeVar("Result")


class _Others:
    """What the other processes do, as far as this one knows: nothing that it could use, unless it
    is said."""

    are_waiting = False
    """For the main process's word, in `flag_from_main`."""
    do_the_same = False
    """Every call that this one makes, with the same values."""


class ProcessLost(ShoalError):
    """Another process of the group has ended, so that this one cannot go on."""

    def __init__(self) -> None:
        super().__init__(lost(rank(), world_size()))


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the group that torchrun announced (NCCL on CUDA, gloo on the CPU), and leave it at the
    end.

    Each process of a machine then has a GPU of its own under the name "cuda". One that dies, or
    whose machine does, ends the others within a minute. They end too when torchrun tells them to,
    as if Ctrl-C had been pressed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or is_started():
        yield
        return
    if str(device) == "cuda":  # no number: each process takes its own
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, number, n_processes = next(
            rendezvous("env://", timeout=datetime.timedelta(seconds=JOIN_S))
        )
        dist.init_process_group(
            _backend(device),
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
    """Let the signal with which torchrun ends processes interrupt this one, so that it says what to
    do next."""
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
    """Whether this process belongs to a group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, 0 alone."""
    if not is_started():
        return 0
    return dist.get_rank()


def world_size() -> int:
    """How many processes there are, 1 alone."""
    if not is_started():
        return 1
    return dist.get_world_size()


def is_main() -> bool:
    """Whether this process is the one that writes files and prints; torchrun's know it before they
    have joined."""
    return rank() == 0 if is_started() else os.environ.get("RANK", "0") == "0"


def flag_from_main(value: bool, device: torch.device) -> bool:
    """What the main process says, in every process; others wait for it, and take part in what it
    calls meanwhile."""
    if not is_started():
        return value
    while (word := _word_from_main(int(value), device)) == CALL:
        _take_part(device)
    return bool(word)


def number_from_main(value: int | None, device: torch.device) -> int | None:
    """A count, or none, as the main process knows it, in every process."""
    number: int | None = object_from_main(value, device)
    return number


def object_from_main(value: object, device: torch.device) -> Any:
    """What the main process holds, in every process; it can be pickled."""
    if not is_started():
        return value
    message = [value]
    with _explained():
        dist.broadcast_object_list(message, src=0, device=device)
    return message[0]


@contextmanager
def others_waiting(are_waiting: bool = True) -> Iterator[None]:
    """Say, in the main process, whether the others wait for its word in `flag_from_main`."""
    before = _Others.are_waiting
    _Others.are_waiting = are_waiting and is_started() and is_main()
    try:
        yield
    finally:
        _Others.are_waiting = before


@contextmanager
def together() -> Iterator[None]:
    """Say that all processes do the same meanwhile: make every call, in the same order, with the
    same values."""
    before = _Others.do_the_same
    _Others.do_the_same = is_started()
    try:
        yield
    finally:
        _Others.do_the_same = before


def by_main(work: Callable[[], Result], device: torch.device) -> Result | None:
    """Let the main process do some work, and call the others for a part of it; they return None
    when it has ended."""
    result = None
    if is_main():
        with others_waiting():
            result = work()
    flag_from_main(True, device)
    return result


def can_share(device: torch.device, n_products: float, least: float) -> bool:
    """Whether work on a device can be shared with the other processes, and is worth it: `least`
    products are."""
    if not (_Others.are_waiting or _Others.do_the_same) or n_products < least:
        return False
    return dist.get_backend() == _backend(device)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def tell_others(
    function: Callable[..., object],
    tensors: dict[str, Tensor],
    device: torch.device,
    **options: int,
) -> None:
    """Have every other process call a function of a module with these tensors and options.

    The main process goes on at once, and must send and receive what the function does. A process
    that does the same anyway is not told.
    """
    if _Others.do_the_same:
        return
    sent = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _word_from_main(CALL, device)
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in sent.items()}
    object_from_main((function, shapes, options), device)
    for tensor in sent.values():
        _broadcast(tensor)


def _take_part(device: torch.device) -> None:
    """Call what the main process calls."""
    function, shapes, options = object_from_main(None, device)
    tensors = {name: torch.empty_like(shape, device=device) for name, shape in shapes.items()}
    for tensor in tensors.values():
        _broadcast(tensor)
    function(**tensors, **options)


def _word_from_main(word: int, device: torch.device) -> int:
    message = torch.tensor([word], device=device)
    _broadcast(message)
    return int(message)


def _broadcast(tensor: Tensor) -> None:
    with _explained():
        dist.broadcast(tensor, src=0)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what torch says when another process is gone into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost from error


def barrier() -> None:
    """Wait for the others."""
    if is_started():
        with _explained():
            dist.barrier()


def shard(n_rows: int, of: int | None = None) -> slice:
    """The contiguous share of `n_rows` rows of this process, or of another; they differ by at most
    one row."""
    base, extra = divmod(n_rows, world_size())
    number = of
    if number is None:
        number = rank()
    start = number * base + min(number, extra)
    return slice(start, start + base + (number < extra))


def n_own(n_rows: int) -> int:
    """How many of `n_rows` rows are this process's share."""
    mine = shard(n_rows)
    return int(mine.stop - mine.start)


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate every process's rows (their numbers may differ) in rank order; each process gets
    all of them."""
    if not is_started():
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    n_each = [torch.empty_like(own) for _ in range(world_size())]
    with _explained():
        dist.all_gather(n_each, own)
        padded = rows.new_zeros((int(max(n_each)), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in n_each]
        dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, n_each, strict=True)])


def take_rows(read: Callable[[Tensor], Tensor], n_rows: int, wanted: Tensor) -> Tensor:
    """Rows `wanted` (b,) of an array of `n_rows`, of which each process holds its `shard`; all of
    them call this.

    `read` gives rows of the own share, by their position in it. Each process may want other rows,
    and any number.
    """
    if not is_started():
        return read(wanted)
    stops = [shard(n_rows, of).stop for of in range(world_size())]
    ends = torch.tensor(stops, device=wanted.device)
    holder = torch.searchsorted(ends, wanted, right=True)  # (b,) who has each
    order = holder.argsort(stable=True)
    n_wanted = torch.bincount(holder, minlength=world_size())  # (P,) from each process
    one_each = [1] * world_size()
    from_each = n_wanted.tolist()
    to_each = _exchange(n_wanted, one_each, one_each).tolist()
    asked = _exchange(wanted[order], from_each, to_each)
    rows = _exchange(read(asked - shard(n_rows).start), to_each, from_each)
    return torch.empty_like(rows).index_copy_(0, order, rows)


def _exchange(rows: Tensor, to_each: list[int], from_each: list[int]) -> Tensor:
    """Send so many rows to each process, in their order, and receive as many as each has for this
    one."""
    received = rows.new_empty((sum(from_each), *rows.shape[1:]))
    with _explained():
        dist.all_to_all_single(received, rows.contiguous(), from_each, to_each)
    return received


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of one tensor over all processes, in every process."""
    if not is_started():
        return value
    total = value.clone()
    with _explained():
        dist.all_reduce(total)
    return total / world_size()


def any_over_processes(flags: Tensor) -> Tensor:
    """Combine flags over all processes: one is set in every process where it is set in any."""
    if not is_started():
        return flags
    counted = flags.to(torch.uint8)
    with _explained():
        dist.all_reduce(counted, op=dist.ReduceOp.MAX)
    return counted.bool()
