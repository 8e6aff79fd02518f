"""Fast matrix products: number formats, rows rounded to them, and threads that share work by chunks
of rows.

Products only propose candidates, to the neighbor search and to Ward's tree alike. Their rounding
error is bounded, and numbers that are the same on every device decide (`ward/bounds.py`).

torch splits every operation over its threads and waits for the slowest. A round of merges has
hundreds of short operations, and on a busy machine each wait costs a time slice: five to ten times
the CPU time was measured. So torch is limited to one thread, and as many workers process whole
chunks. On a GPU there is one worker, the caller. All run in inference mode, which makes short
operations a tenth cheaper.

torch's number of threads and its precision of float32 products are settings of the whole process,
so only one thread of a program changes them at a time; others wait.

Shapes: C rows, D columns.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from threading import RLock, local
from typing import Self, TypeVar

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

# Rows rounded per chunk; on the CPU a chunk fits into the cache
ENCODE_ROWS = {"cpu": 1 << 8, "cuda": 1 << 16}

# Upper bound on the error of a float32 product by underflow or flushed denormals, for entries up to
# 2
UNDERFLOW = 2.0**-120

# Columns per group in the first stage of `largest_columns`, which computes the maximum of each
# group; a power of two. Larger on a GPU, where `topk` is slow compared to a maximum.
GROUP = {"cpu": 8, "cuda": 64}


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


@dataclass(frozen=True)
class Rows:
    """A dataclass of tensors that each have a row for the same things."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with every tensor changed."""
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def take(self, rows: Tensor | slice) -> Self:
        return self.each(lambda tensor: tensor[rows])

    def put(self, rows: Tensor | slice, values: Self) -> None:
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(values, field.name)


@dataclass(frozen=True)
class Precision:
    """A number format for matrix products that find candidates."""

    dtype: torch.dtype
    # Significant bits of each number
    bits: int
    # Largest relative error of one addition in the product
    unit: float
    # How far torch may round the inputs of a float32 product (`workers.matmul_precision`): not at
    # all, or to a format that holds them exactly
    matmul: str = "highest"

    @property
    def value_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def round(self, exact: Tensor) -> Tensor:
        """Round float64 numbers to `bits`, stored as `dtype`."""
        if self.dtype == torch.float64:
            return exact
        single = exact.float()
        drop = 24 - self.bits
        if drop == 0:
            return single
        short = ((single.view(torch.int32) + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)
        return short.to(self.dtype)

    def gamma(self, n_columns: int) -> float:
        """Return γ for sums of D products and four more terms; in float64 the four terms have as
        large an error as the sum."""
        n_terms = n_columns + 4
        if self.dtype == torch.float64:
            n_terms *= 2
        nu = n_terms * self.unit
        return nu / (1 - nu) if nu < 0.5 else float("inf")


BFLOAT16 = Precision(torch.float32, 8, 2.0**-24, "medium")
TENSOR_BFLOAT16 = Precision(torch.bfloat16, 8, 2.0**-22)
TENSOR_TFLOAT32 = Precision(torch.float32, 11, 2.0**-22, "high")
FLOAT32 = Precision(torch.float32, 24, 2.0**-24)
FLOAT64 = Precision(torch.float64, 53, 2.0**-53)


@dataclass(frozen=True)
class Points(Rows):
    """Centered rows rounded to a precision (C, D), half their squared lengths (C,), and upper
    bounds on the distances by which rounding moved them (C,)."""

    points: Tensor
    half: Tensor
    reach: Tensor

    @classmethod
    def of(cls, rows: Tensor, center: Tensor, precision: Precision) -> "Points":
        """Round rows about a center, and measure the rounding error in float64."""
        exact = rows - center
        points = precision.round(exact)
        wide = points.double()
        length = torch.linalg.vector_norm(wide, dim=1)
        moved = torch.linalg.vector_norm(exact - wide, dim=1)
        # Norms in float64 are off by far less than 1e-9. The second term bounds the rounding of the
        # subtraction: at most 2^-53 of a length of at most `length` + `moved`.
        reach = moved * (1 + 1e-9) + (length + moved) * 2.0**-52 + 1e-200
        return cls(points, length.square() / 2, reach)

    @classmethod
    def of_all(
        cls, rows: Tensor, center: Tensor, precision: Precision, workers: Workers
    ) -> "Points":
        """Round many rows, a chunk at a time."""
        half = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        points = cls(torch.empty_like(rows, dtype=precision.dtype), half, half.clone())
        all_rows = torch.arange(len(rows), device=rows.device)
        points.update(all_rows, rows, center, precision, workers)
        return points

    def update(
        self, which: Tensor, rows: Tensor, center: Tensor, precision: Precision, workers: Workers
    ) -> None:
        """Round some of the rows again, a chunk at a time."""
        workers.map_rows(
            lambda part: self.put(part, Points.of(rows[part], center, precision)),
            which,
            at_most=ENCODE_ROWS[which.device.type],
        )


def largest_columns(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row of (R, C), descending, and their columns.

    Several times faster than `topk`: the k largest lie in the k groups of columns with the largest
    maxima, so only those are searched.
    """
    n_rows, n_columns = values.shape
    group = GROUP[values.device.type]
    n_groups = n_columns // group
    if n_groups < 2 * k:
        best = values.topk(min(k, n_columns), 1)
        return best.values, best.indices
    n_grouped = n_groups * group
    # Group g holds the columns g, g + n_groups, g + 2·n_groups, …
    heads = values[:, :n_grouped].view(n_rows, group, n_groups).amax(1)
    groups = heads.topk(k, 1, sorted=False).indices  # (R, k)
    offsets = torch.arange(0, n_grouped, n_groups, device=values.device)
    rest = torch.arange(n_grouped, n_columns, device=values.device)
    columns = torch.cat([(groups[:, :, None] + offsets).flatten(1), rest.expand(n_rows, -1)], 1)
    best = values.gather(1, columns).topk(k, 1)
    return best.values, columns.gather(1, best.indices)
