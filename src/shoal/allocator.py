"""The memory allocator told to keep what is freed: a batch takes the same large blocks as the batch
before it.

By default allocators hand large blocks back to the system at once and have them faulted in again,
page by page and zeroed, with the next batch. That was a sixth to nearly a half of the CPU time of
embedding.
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""What glibc calls two of its settings, in malloc.h."""

LARGEST_KEPT = 1 << 30
"""Bytes of the largest block that is kept; larger ones, such as a pool of views, go back to the
system."""


def keep_freed_memory() -> None:
    """Let the process keep the blocks that it frees; only for a process that is ours, and before
    torch is imported.

    torch brings mimalloc on some platforms, which reads its settings from the environment when it
    is loaded, and uses the C library's allocator on others. What a user has set stays.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
            library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
