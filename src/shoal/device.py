"""Where tensors live, in which precision, and from which seed: the one place that asks the hardware."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from shoal.errors import MissingError, UsageError

EXPECTED = "expected cpu, cuda, cuda:N or mps"


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Turn 'cpu', 'cuda', 'cuda:1', 'mps' or None (CUDA when there is one) into the device that trains and clusters."""
    return computing_device(encoder_device(name))


def encoder_device(name: str | torch.device | None = None) -> torch.device:
    """The device that frozen encoders run on: the same, or Apple's GPU where there is one."""
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device: found {name!r}, {EXPECTED}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device: found {name!r}, {EXPECTED}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MissingError(
            f"device: found {name!r}; CUDA devices that torch {torch.__version__} sees: {torch.cuda.device_count()}; "
            "use cpu, or install a CUDA build of torch"
        )
    if device.type == "mps" and not has_mps():
        raise MissingError(
            f"device: found {name!r}, but torch {torch.__version__} sees no GPU of Apple's; use cpu"
        )
    return device


def computing_device(device: torch.device) -> torch.device:
    """Where tensors are worked on whose encoder runs on `device`: the CPU beside Apple's GPU, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def has_mps() -> bool:
    """Whether torch sees a GPU of Apple's; one in several processes counts for none, as they would share it."""
    return torch.backends.mps.is_available() and int(os.environ.get("WORLD_SIZE", "1")) == 1


def device_in_words(device: torch.device) -> str:
    """Which device an encoder is given, and why."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "mps":
        return "mps (Apple's GPU embeds images; training and clustering need float64, which only the CPU has)"
    why = "torch sees no GPU" if not torch.cuda.is_available() else "a GPU is there"
    return f"cpu ({torch.get_num_threads()} threads; {why})"


def autocast_dtype(device: torch.device) -> torch.dtype:
    """The precision of network forwards: bfloat16 on CUDA, float32 on the CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU that multiplies bfloat16 tiles in hardware (AMX); on others float32 is as fast."""
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and bool(ask and ask())


def check_seed(seed: int) -> None:
    """Refuse a seed that `seed_everything` would not take."""
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"seed: found {seed}, expected a whole number from 0 to {(1 << 32) - 1}")


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch (all devices); functions that draw still take their own generator."""
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (third-party code draws from numpy's global state)
    torch.manual_seed(seed)


def seconds_of(
    work: Callable[[], object], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The time of the second of two calls: the first one may compile and allocate."""
    for _ in range(2):
        began = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return clock() - began


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on `device`: free CUDA memory, or what Linux and a container's limit leave.

    The processes that torchrun has started on a machine share its memory, and have a GPU each.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _available_host_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _available_host_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(min(int(fields["MemAvailable"].split()[0]) * 1024, max(_left_in_container(), 0)))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30


def _left_in_container(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes left below the memory limit of the control group (v2) that a container is; infinity where there is none.

    Cached files count as used there, but make room when it is asked for.
    """
    try:
        limit, used = (
            (root / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return int(limit) - int(used) + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):  # no such file, or 'max' for no limit
        return float("inf")
