"""Settings of the whole process that several trees may change at once; the last one to end restores them.

torch keeps the number of its threads and the precision of float32 products once for all threads. Were each tree to set
and restore them, one would restore what another had set, and products that must be full float32 could be rounded to
bfloat16 by another tree's setting. So the strictest of the values that are asked for is in force.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar

import torch

from shoal.clustering.products import Precision

FEW_PRODUCTS = 3e8
"""Multiply-adds below which plain float32 is as fast: a reduced product is compiled for each shape on the CPU."""

Value = TypeVar("Value", bound=Hashable)


class SharedSetting(Generic[Value]):
    """One such setting; `strictness` lists the values that can be asked for, the strictest first."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], strictness: tuple[Value, ...]) -> None:
        self._read, self._write, self._strictness = read, write, strictness
        self._lock, self._users, self._before = Lock(), Counter[Value](), None

    def acquire(self, wanted: Value) -> Any:
        """Ask for a value, which holds unless another user asks for a stricter one; returns the one before all."""
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


def _read_precision() -> Any:
    """torch's precision of float32 products: one name, or where the caller has set backends apart, one for each."""
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


THREADS = SharedSetting(torch.get_num_threads, torch.set_num_threads, (1,))
PRECISION = SharedSetting(_read_precision, _write_precision, ("highest", "high", "medium"))


@contextmanager
def matmul_precision(precision: Precision, n_products: float = torch.inf) -> Iterator[None]:
    """While inside, float32 products may round their inputs to fewer bits, or may not, whatever the caller allows.

    Points of a reduced precision fit it exactly, so nothing is lost; products of full float32 must stay that.
    """
    wanted = precision.matmul if n_products > FEW_PRODUCTS else "highest"
    PRECISION.acquire(wanted)
    try:
        yield
    finally:
        PRECISION.release(wanted)
