"""Devices, their free memory, and seeds."""

import os
import random
import re
from pathlib import Path

import numpy as np
import torch

from shoal.errors import MissingError, UsageError

# A device or its name; None: CUDA if available
AnyDevice = str | torch.device | None


def choose_device(name: AnyDevice = None) -> torch.device:
    """Return the device that 'cpu', 'cuda' or 'cuda:1' names; for None, CUDA if available."""
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda)(:\d{1,2})?", str(name)):
        raise UsageError(f"device: found {name!r}, expected cpu, cuda or cuda:N")
    device = torch.device(name)
    n_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= n_gpus:
        raise MissingError(
            f"device: found {name!r}, but torch {torch.__version__} sees {n_gpus} CUDA devices and "
            "no such GPU; use cpu, or install a build of torch for it"
        )
    return device


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    why = "a GPU is available" if torch.cuda.is_available() else "torch sees no GPU"
    return f"cpu ({torch.get_num_threads()} threads; {why})"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether this CPU multiplies bfloat16 tiles in hardware (AMX); on others float32 is as
    fast."""
    return device.type == "cpu" and torch.cpu._is_amx_tile_supported()


def check_seed(seed: int) -> None:
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"seed: found {seed}, expected a whole number from 0 to {(1 << 32) - 1}")


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch on all devices; our own functions take a generator instead."""
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (third-party code uses numpy's global state)
    torch.manual_seed(seed)


def free_memory(device: torch.device) -> int:
    """Return the free bytes on `device`: CUDA memory, or host memory within a container's limit.

    Processes of torchrun share the memory of a machine, and have a GPU each.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _available_host_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _available_host_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return int(min(available, max(_left_in_container(), 0)))


def _left_in_container(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes left below the memory limit of a container (cgroup v2); infinity without a
    limit.

    Cached files count as used there, but are evicted when memory is needed.
    """
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or 'max' for no limit
        return float("inf")
    return limit - used + int(stat.get("inactive_file", 0))
