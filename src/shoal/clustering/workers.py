"""Threads that share work by chunks of rows.

torch splits every operation over its threads and waits for the slowest. A round of merges has
hundreds of short operations, and on a busy machine each wait costs a time slice: five to ten times
the CPU time was measured. So torch is limited to one thread, and as many workers process whole
chunks. On a GPU there is one worker, the caller. All run in inference mode, which makes short
operations a tenth cheaper.

torch's number of threads and its precision of float32 products are settings of the whole process,
so only one thread of a program changes them at a time; others wait.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock, local
from typing import TypeVar

import torch
from torch import Tensor

# Multiply-adds below which plain float32 is as fast: on the CPU, a reduced product is compiled for
# each shape
FEW_PRODUCTS = 3e8

# Fewest rows of a chunk if each row takes long
MIN_ROWS = 64

SETTINGS_LOCK = RLock()

BACKENDS = (torch.backends.mkldnn, torch.backends.cuda)

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def matmul_precision(allowed: str, n_products: float = torch.inf) -> Iterator[None]:
    """Set the precision of float32 products, independent of the caller's setting.

    `allowed` is `Precision.matmul`: inputs of a reduced precision are not changed by it, and
    products of full float32 must stay exact.
    """
    with SETTINGS_LOCK:
        before: str | list[str]
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:  # the caller has set the backends separately
            before = [backend.matmul.fp32_precision for backend in BACKENDS]
        torch.set_float32_matmul_precision(allowed if n_products > FEW_PRODUCTS else "highest")
        try:
            yield
        finally:
            if isinstance(before, str):
                torch.set_float32_matmul_precision(before)
            else:
                for backend, precision in zip(BACKENDS, before, strict=True):
                    backend.matmul.fp32_precision = precision


class Workers:
    """Threads that process chunks of rows."""

    def __init__(self, n: int = 1) -> None:
        self.n = n
        self.pool = ThreadPoolExecutor(n)

    def chunk_rows(self, n_rows: int, at_most: int) -> int:
        """Return the size of chunks that are about equal and keep all workers busy to the end."""
        n_turns = max(1, -(-n_rows // (at_most * self.n)))
        return min(at_most, max(MIN_ROWS, -(-n_rows // (n_turns * self.n))))

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        items = list(items)
        if self.n == 1 or len(items) < 2:
            return [work(item) for item in items]
        return list(self.pool.map(torch.inference_mode()(work), items))

    def map_rows(self, work: Callable[..., Result], *rows: Tensor, at_most: int) -> list[Result]:
        """Return the results of `work` for chunks of rows, in order; every tensor is split the same
        way."""
        step = self.chunk_rows(len(rows[0]), at_most)
        chunks = zip(*(torch.split(each, step) for each in rows), strict=True)
        return self.map(lambda chunk: work(*chunk), chunks)


@contextmanager
def all_workers(device: torch.device) -> Iterator[Workers]:
    """Yield as many workers as torch has threads, which it gets back at the end."""
    with SETTINGS_LOCK, torch.inference_mode():
        n_threads = torch.get_num_threads()
        workers = Workers(n_threads if device.type == "cpu" else 1)
        torch.set_num_threads(1)
        try:
            with workers.pool:
                yield workers
        finally:
            torch.set_num_threads(n_threads)


class Scratch:
    """Named buffers, reused by each thread: allocating new pages would take longer than the
    arithmetic on them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = local()

    def array(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized array in the buffer of this name."""
        n = shape[0] * shape[1]
        key = f"{name} {dtype}"
        buffers = vars(self._own)
        if key not in buffers or len(buffers[key]) < n:
            buffers[key] = torch.empty(n, dtype=dtype, device=self._device)
        return buffers[key][:n].view(shape)
