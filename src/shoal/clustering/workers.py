"""Work shared by chunks of rows over threads, each of which computes alone.

torch splits every operation over its threads and waits for the slowest. A round of merges is
hundreds of short operations, and on a busy machine each wait is a turn of the scheduler: five to
ten times the CPU seconds were measured. So torch is kept to one thread meanwhile, and its threads
are replaced by as many workers that take whole chunks. On a GPU there is one worker, the caller.
All work in inference mode, which makes short operations a tenth cheaper.

torch keeps the number of its threads and the precision of float32 products once for the whole
process, so only one thread of a program changes them at a time; others wait for it.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import RLock, local
from typing import TypeVar

import torch
from torch import Tensor

FEW_PRODUCTS = 3e8
"""Multiply-adds below which plain float32 is as fast: a reduced product is compiled for each shape
on the CPU."""

MIN_ROWS = 64
"""Rows that a worker is given at least, where a row is much work."""

SETTINGS_LOCK = RLock()
"""Held by whoever has changed torch's settings, until they are restored."""

BACKENDS = (torch.backends.mkldnn, torch.backends.cuda)

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def matmul_precision(allowed: str, n_products: float = torch.inf) -> Iterator[None]:
    """While inside, float32 products may round their inputs to fewer bits, or may not, whatever the
    caller allows.

    `allowed` is `Precision.matmul`: points of a reduced precision fit it exactly, so nothing is
    lost; products of full float32 must stay that.
    """
    with SETTINGS_LOCK:
        before: str | list[str]
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:  # the caller has set backends apart
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
    """A context: as many workers as torch has threads; the number is given back at the end."""

    def __init__(self, device: torch.device) -> None:
        self.n = 1
        self._device = device
        self._inference = torch.inference_mode()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        SETTINGS_LOCK.acquire()
        if self._device.type == "cpu":
            self.n = torch.get_num_threads()
            torch.set_num_threads(1)
        if self.n > 1:
            self._pool = ThreadPoolExecutor(self.n)
        self._inference.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inference.__exit__(*error)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._device.type == "cpu":
            torch.set_num_threads(self.n)
        SETTINGS_LOCK.release()

    def share(self, n_rows: int, at_most: int, at_least: int = MIN_ROWS) -> int:
        """Rows of a chunk, so that every worker has one where there are enough rows."""
        return max(1, min(at_most, max(at_least, -(-n_rows // self.n))))

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results of `work` for every item, in order; one item is done by the caller."""
        items = list(items)
        if self._pool is None or len(items) < 2:
            return [work(item) for item in items]
        return list(self._pool.map(torch.inference_mode()(work), items))

    def map_rows(
        self, work: Callable[..., Result], *rows: Tensor, at_most: int, at_least: int = MIN_ROWS
    ) -> list[Result]:
        """The results of `work` for chunks of rows, in order: the same rows of each tensor at a
        time."""
        step = self.share(len(rows[0]), at_most, at_least)
        chunks = zip(*(torch.split(each, step) for each in rows), strict=True)
        return self.map(lambda chunk: work(*chunk), chunks)


class Scratch:
    """Memory kept for reuse, by name, each thread its own: fresh pages would cost more than the
    arithmetic on them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = local()

    def array(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """An uninitialized array in the memory this name had last time."""
        n = shape[0] * shape[1]
        kept: Tensor | None = getattr(self._own, f"{name} {dtype}", None)
        if kept is None or len(kept) < n:
            kept = torch.empty(n, dtype=dtype, device=self._device)
            setattr(self._own, f"{name} {dtype}", kept)
        return kept[:n].view(shape)
