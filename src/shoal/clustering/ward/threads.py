"""One thread for small work: waking the others costs more than it saves, and a lot more on a busy machine.

A round of merges is some hundred short torch calls. Where every core is taken, each call that is split over threads
waits for one that is not running; the tree does not depend on the number of threads, so nothing else changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_WORK = 4e6
"""Elementary operations below which one thread does the work: a few milliseconds."""

PRODUCTS = 1 / 64
"""Elementary operations in one multiply-add of a matrix product, about."""


@contextmanager
def threads_for(operations: float) -> Iterator[None]:
    """Keep torch to one thread while inside if there is little to do, and give the others back."""
    before = torch.get_num_threads()
    if before == 1 or operations >= SMALL_WORK:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
