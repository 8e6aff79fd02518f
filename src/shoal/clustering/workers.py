"""Work shared by chunks of rows over threads, each of which computes alone.

torch splits every operation over its threads and waits for the slowest. A round of merges is
hundreds of short operations, and on a busy machine each wait is a turn of the scheduler: five to
ten times the CPU seconds were measured. So torch is kept to one thread meanwhile, and its threads
are replaced by as many workers that take whole chunks. On a GPU there is one worker, the caller.
All work in inference mode, which makes short operations a tenth cheaper.

torch keeps the number of its threads and the precision of float32 products once for the whole
process. Were each tree to set and restore them, one would restore what another had set, and
products that must be full float32 could be rounded to bfloat16 by another tree's setting. So the
strictest of the values that are asked for is in force, and the last user restores what was there
before all.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, local
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

FEW_PRODUCTS = 3e8
"""Multiply-adds below which plain float32 is as fast: a reduced product is compiled for each shape
on the CPU."""

MIN_ROWS = 64
"""Rows that a worker is given at least, where a row is much work."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value", bound=Hashable)


class SharedSetting(Generic[Value]):
    """A setting that several users change at once; `strictness` lists the values to ask for, the
    strictest first."""

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], None], strictness: tuple[Value, ...]
    ) -> None:
        self._read = read
        self._write = write
        self._strictness = strictness
        self._lock = Lock()
        self._users = Counter[Value]()
        self._before = None

    def acquire(self, wanted: Value) -> Any:
        """Ask for a value, which holds unless another user asks for a stricter one; returns the one
        before all."""
        with self._lock:
            if not self._users.total():
                self._before = self._read()
            self._users[wanted] += 1
            self._write(self._strictest())
            return self._before

    def release(self, wanted: Value) -> None:
        """No longer ask for a value."""
        with self._lock:
            self._users[wanted] -= 1
            self._write(self._strictest() if self._users.total() else self._before)

    def _strictest(self) -> Value:
        return next(value for value in self._strictness if self._users[value])


THREADS = SharedSetting(torch.get_num_threads, torch.set_num_threads, (1,))


def _read_precision() -> Any:
    """torch's precision of float32 products: one name, or where the caller has set backends apart,
    one for each."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(backend.fp32_precision for backend in _backends())


def _write_precision(precision: Any) -> None:
    if isinstance(precision, tuple):
        for backend, value in zip(_backends(), precision, strict=True):
            backend.fp32_precision = value
        return
    torch.set_float32_matmul_precision(precision)


def _backends() -> tuple[Any, ...]:
    known: Any = torch.backends
    return known.mkldnn.matmul, known.cuda.matmul


PRECISION = SharedSetting(_read_precision, _write_precision, ("highest", "high", "medium"))


@contextmanager
def matmul_precision(allowed: str, n_products: float = torch.inf) -> Iterator[None]:
    """While inside, float32 products may round their inputs to fewer bits, or may not, whatever the
    caller allows.

    `allowed` is `Precision.matmul`: points of a reduced precision fit it exactly, so nothing is
    lost; products of full float32 must stay that.
    """
    wanted = allowed if n_products > FEW_PRODUCTS else "highest"
    PRECISION.acquire(wanted)
    try:
        yield
    finally:
        PRECISION.release(wanted)


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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        arrays: dict[Any, Tensor] = self._own.__dict__
        n = shape[0] * shape[1]
        kept = arrays.get((name, dtype))
        if kept is None or len(kept) < n:
            kept = arrays[name, dtype] = torch.empty(n, dtype=dtype, device=self._device)
        return kept[:n].view(shape)
