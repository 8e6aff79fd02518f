"""Settings of the memory allocator, so that freed blocks are reused by the next batch; peak memory.

By default, allocators return large blocks to the system immediately, or after 10 ms, and each batch
faults them in again, page by page.
"""

import ctypes
import os
import sys

# Two settings of glibc, from malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

# Milliseconds after which mimalloc returns a block that no batch has reused, such as those of the
# previous stage
PURGE_DELAY_MS = 1000

# Larger blocks, such as a pool of views, are returned to the system
MAX_REUSED_BYTES = 1 << 30


def reuse_freed_memory() -> None:
    """Set the allocator to reuse freed blocks; only in the process of a command, before torch is
    imported.

    torch uses mimalloc on some platforms, which reads the environment when it is loaded, and the C
    library's allocator on others. Settings of the user are respected.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(PURGE_DELAY_MS))
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(M_MMAP_THRESHOLD, MAX_REUSED_BYTES)
            library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Return all freed blocks to the system; between stages, whose blocks differ in size."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
