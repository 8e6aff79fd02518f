"""Several processes as one: rank, shards, gathers. Alone, every call is a no-op, so there is one code path.

Processes are started by `torchrun`, whose environment variables `processes` reads; nothing else sets them up. This is
the only file that imports torch.distributed.
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.errors import ShoalError


@contextmanager
def processes(device: torch.device, timeout_s: float = 1800.0) -> Iterator[None]:
    """Join the group that torchrun announced (NCCL on CUDA, gloo on the CPU), and leave it at the end.

    Each process of a machine then has a GPU of its own under the name "cuda".
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or is_started():
        yield
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if str(device) == "cuda":  # no number: each process takes its own
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    except (RuntimeError, ValueError) as error:
        raise ShoalError(f"could not join the process group: {error}; start the command with torchrun") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def _take_gpu(number: int) -> None:
    if number >= torch.cuda.device_count():
        raise ShoalError(
            f"process {number + 1} of this machine has no GPU, torch sees {torch.cuda.device_count()}; lower "
            "torchrun's --nproc-per-node"
        )
    torch.cuda.set_device(number)


def is_started() -> bool:
    """Whether this process belongs to a group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, 0 alone."""
    return dist.get_rank() if is_started() else 0


def world_size() -> int:
    """How many processes there are, 1 alone."""
    return dist.get_world_size() if is_started() else 1


def is_main() -> bool:
    """Whether this process is the one that writes files and prints; torchrun's know it before they have joined."""
    return rank() == 0 if is_started() else os.environ.get("RANK", "0") == "0"


def flag_from_main(value: bool, device: torch.device) -> bool:
    """What the main process says, in every process; the others wait until it says something."""
    if not is_started():
        return value
    message = torch.tensor([value], dtype=torch.uint8, device=device)
    try:
        dist.broadcast(message, src=0)
    except RuntimeError as error:
        raise ShoalError("the main process has ended; see what it says") from error
    return bool(message.item())


def number_from_main(value: int | None, device: torch.device) -> int | None:
    """A count, or none, as the main process knows it, in every process."""
    if not is_started():
        return value
    message = torch.tensor([-1 if value is None else value], device=device)
    dist.broadcast(message, src=0)
    found = int(message.item())
    return None if found < 0 else found


def barrier() -> None:
    """Wait for the others."""
    if is_started():
        dist.barrier()


def shard(n_rows: int) -> slice:
    """This process's contiguous share of `n_rows` rows; shares differ by at most one row and cover all."""
    base, extra = divmod(n_rows, world_size())
    start = rank() * base + min(rank(), extra)
    return slice(start, start + base + (rank() < extra))


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate every process's rows (their numbers may differ) in rank order; each process gets all of them."""
    if not is_started():
        return rows
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    longest = max(int(count) for count in counts)
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of one tensor over all processes, in every process."""
    if not is_started():
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / world_size()
