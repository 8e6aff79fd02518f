"""Freed memory stays with the process, so that the next batch does not fault it in again, until a
stage ends."""

import os
import subprocess
import sys

import pytest

TAKE_AND_FREE = """
import resource, time
from shoal.allocator import return_freed_memory, reuse_freed_memory
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
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
return_freed_memory()
print(before - resident())
"""

# Of pages: ten blocks of 48 MB are 120,000, or 2,000 where numpy has asked for large ones
FEW = 1000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's allocators are told")
def test_freed_blocks_are_faulted_in_again_only_if_returned() -> None:
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "MIMALLOC_"))
    }
    command = [sys.executable, "-c", TAKE_AND_FREE]
    output = subprocess.check_output(command, env=others, text=True)
    by_numpy, by_torch, n_returned = map(int, output.split())
    assert by_numpy < FEW
    assert by_torch < FEW
    assert n_returned > 48 << 20
