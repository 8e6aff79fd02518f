"""Work shared by chunks of rows over threads, each of which computes alone.

torch splits every operation over its threads and waits for the slowest. A round of merges is hundreds of short
operations, and on a busy machine each wait is a turn of the scheduler: five to ten times the CPU seconds were measured.
So torch is kept to one thread meanwhile, and its threads are replaced by as many workers that take whole chunks. On a
GPU there is one worker, the caller. All work in inference mode, which makes short operations a tenth cheaper.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import local
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from shoal.clustering.torch_settings import THREADS

MIN_ROWS = 64
"""Rows that a worker is given at least, where a row is much work."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A context: as many workers as torch has threads; the number is given back at the end."""

    def __init__(self, device: torch.device) -> None:
        self._borrows = device.type == "cpu"
        self._inference = torch.inference_mode()
        self._pool: ThreadPoolExecutor | None = None
        self.n = 1

    def __enter__(self) -> "Workers":
        if self._borrows:
            self.n = THREADS.acquire(1)
            self._pool = ThreadPoolExecutor(self.n) if self.n > 1 else None
        self._inference.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inference.__exit__(kind, error, trace)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._borrows:
            THREADS.release(1)

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
        """The results of `work` for chunks of rows, in order: the same rows of each tensor at a time."""
        step = self.share(len(rows[0]), at_most, at_least)
        chunks = zip(*(torch.split(each, step) for each in rows), strict=True)
        return self.map(lambda chunk: work(*chunk), chunks)


class Scratch:
    """Memory kept for reuse, by name, each thread its own: fresh pages would cost more than the arithmetic on them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = local()

    def array(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """An uninitialised array in the memory this name had last time."""
        arrays: dict[Any, Tensor] = self._own.__dict__
        n = shape[0] * shape[1]
        kept = arrays.get((name, dtype))
        if kept is None or len(kept) < n:
            kept = arrays[name, dtype] = torch.empty(n, dtype=dtype, device=self._device)
        return kept[:n].view(shape)
