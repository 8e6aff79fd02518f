"""Freed memory stays with the process, so that the next batch does not fault it in again."""

import os
import subprocess
import sys

import pytest

TAKE_AND_FREE = """
import resource, time
from shoal.allocator import reuse_freed_memory
reuse_freed_memory()
import numpy, torch
def faults(take, times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [take(), take()]
        del blocks
        time.sleep(0.05)  # an allocator may wait a little before it gives a block back
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
takes = [
    lambda: numpy.ones(48 << 20, dtype=numpy.uint8),
    lambda: torch.ones(48 << 20, dtype=torch.uint8),
]
for take in takes:
    # Before glibc 2.38 an aligned block leaves small ones behind until their cache is full.
    faults(take, 30)
    print(faults(take, 5))
"""

FEW = 1000
"""Of pages: ten blocks of 48 MB are 120,000, or 2,000 where numpy has asked for large ones."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's allocators are told")
def test_blocks_that_were_freed_are_not_faulted_in_again() -> None:
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "MIMALLOC_"))
    }
    command = [sys.executable, "-c", TAKE_AND_FREE]
    by_numpy, by_torch = map(int, subprocess.check_output(command, env=others, text=True).split())
    assert by_numpy < FEW
    assert by_torch < FEW
