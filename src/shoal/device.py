"""Where tensors live, and from which seed: the one place that asks the hardware."""

import os
import random
from pathlib import Path

import numpy as np
import torch

from shoal.errors import MissingError, UsageError

EXPECTED = "expected cpu, cuda, cuda:N or mps"


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Turn 'cpu', 'cuda', 'cuda:1', 'mps' or None (CUDA when there is one) into the device that
    trains and clusters."""
    return computing_device(encoder_device(name))


def encoder_device(name: str | torch.device | None = None) -> torch.device:
    """The device that frozen encoders run on: the same, or Apple's GPU where there is one."""
    if name is None or name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if has_mps() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device: found {name!r}, {EXPECTED}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device: found {name!r}, {EXPECTED}")
    n_gpus = torch.cuda.device_count()
    is_absent = device.type == "cuda" and (device.index or 0) >= n_gpus
    if is_absent or (device.type == "mps" and not has_mps()):
        raise MissingError(
            f"device: found {name!r}, but torch {torch.__version__} sees {n_gpus} CUDA devices and "
            "no such GPU; use cpu, or install a build of torch for it"
        )
    return device


def computing_device(device: torch.device) -> torch.device:
    """Where tensors are worked on whose encoder runs on `device`: the CPU beside Apple's GPU, which
    has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def has_mps() -> bool:
    """Whether torch sees a GPU of Apple's; several processes would share it, so they use none."""
    return torch.backends.mps.is_available() and int(os.environ.get("WORLD_SIZE", "1")) == 1


def device_in_words(device: torch.device) -> str:
    """Which device an encoder is given, and why."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "mps":
        return "mps (embeds images; training and clustering need float64, so the CPU does them)"
    why = "a GPU is there" if torch.cuda.is_available() else "torch sees no GPU"
    return f"cpu ({torch.get_num_threads()} threads; {why})"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether this is a CPU that multiplies bfloat16 tiles in hardware (AMX); on others float32 is
    as fast."""
    return device.type == "cpu" and torch.cpu._is_amx_tile_supported()


def check_seed(seed: int) -> None:
    """Refuse a seed that `seed_everything` would not take."""
    if not 0 <= seed < 1 << 32:
        raise UsageError(f"seed: found {seed}, expected a whole number from 0 to {(1 << 32) - 1}")


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch (all devices); functions that draw still take their own
    generator."""
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (third-party code draws from numpy's global state)
    torch.manual_seed(seed)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on `device`: free CUDA memory, or what Linux and a container's
    limit leave.

    The processes that torchrun has started on a machine share its memory, and have a GPU each.
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
    """Bytes left below the memory limit of a container (its control group, v2); infinity where
    there is none.

    Cached files count as used there, but make room when it is asked for.
    """
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or 'max' for no limit
        return float("inf")
    return limit - used + int(stat.get("inactive_file", 0))
