"""Decode image files in worker processes, each of which writes pixels into rows of the cache file.

Workers import neither numpy nor torch, so that starting them is cheap.
"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

from shoal.data.pixels.decoding import Unreadable, decode_file, fetch
from shoal.data.storage.opening import is_stored
from shoal.errors import ShoalError

CHUNK = 16
"""Images per task: enough to make messages cheap, few enough to share the end of the work."""

MIN_SHARE = 8
"""Images for which one more worker is started: below, starting it takes longer than decoding
them."""

MAX_BYTES = 4 << 30
"""Address space of a worker: what a decompression bomb may take at most before it counts as
unreadable."""

N_AHEAD = 8
"""Images that are on their way over a network while one is decoded."""

CRASHED = "the decoder crashed"


Batch = tuple[range, dict[int, str]]
"""Positions of paths that are done, and position -> reason for those that cannot be decoded."""


@dataclass(frozen=True)
class DecodingJob:
    """Files to decode: path i goes to row `first_row + i` of the file `data`."""

    data: Path
    first_row: int
    size: int


def available_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_files(
    job: DecodingJob, paths: Sequence[str], n_workers: int, chunk: int = CHUNK
) -> Generator[Batch, None, None]:
    """Decode files in worker processes and yield batches in any order; close the iterator to stop
    early.

    A worker is given `chunk` files at a time. Where one crashes, the files that were being decoded
    are decoded one by one to find the culprit, which counts as failed.
    """
    n_workers = min(n_workers, -(-len(paths) // MIN_SHARE))
    chunk = min(chunk, -(-len(paths) // (4 * n_workers)))
    from shoal.data.pixels.store import explained  # which imports numpy

    waiting = deque(
        range(first, min(first + chunk, len(paths))) for first in range(0, len(paths), chunk)
    )
    running: dict[Future[dict[int, str]], range] = {}
    while waiting:
        try:
            with closing(WorkerPool(n_workers)) as pool:
                while waiting or running:
                    while waiting and len(running) < 2 * n_workers:
                        running[_submit(pool, job, waiting[0], paths)] = waiting[0]
                        waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        with explained(job.data.parent):
                            failed = future.result()
                        yield running.pop(future), failed
        except BrokenProcessPool:
            suspects = deque(position for task in running.values() for position in task)
            running.clear()
            while suspects:
                yield from _decode_singly(job, suspects, paths)


def _decode_singly(
    job: DecodingJob, suspects: "deque[int]", paths: Sequence[str]
) -> Generator[Batch, None, None]:
    """Decode images one at a time, taking each from `suspects`, until a worker crashes or none
    is left."""
    with closing(WorkerPool(1)) as pool:
        try:
            pool.executor.submit(os.getpid).result()
        except BrokenProcessPool as error:
            raise ShoalError(
                f"a decoding worker could not start ({sys.executable}), or was killed at once; "
                "what it said stands above"
            ) from error
        while suspects:
            task = range(suspects[0], suspects[0] + 1)
            try:
                failed = _submit(pool, job, task, paths).result()
            except BrokenProcessPool:
                yield task, {suspects.popleft(): CRASHED}
                return
            suspects.popleft()
            yield task, failed


def _submit(
    pool: "WorkerPool", job: DecodingJob, task: range, paths: Sequence[str]
) -> Future[dict[int, str]]:
    return pool.executor.submit(decode_rows, job, task, [paths[i] for i in task])


def decode_rows(job: DecodingJob, positions: range, paths: Sequence[str]) -> dict[int, str]:
    """Write the pixels of each path into its row; returns position -> reason for those that
    failed."""
    failed = {}
    # A parquet shard is read forward, a row at a time; other files may come together.
    n_ahead = 1 if paths[0].startswith("row:") else N_AHEAD
    with job.data.open("r+b", buffering=0) as rows, ThreadPoolExecutor(n_ahead) as threads:
        fetched = [threads.submit(fetch, path) for path in paths if is_stored(path)]
        for i, (position, path) in enumerate(zip(positions, paths, strict=True)):
            data = None
            try:
                if fetched:  # all are, or none
                    data = fetched[i].result()
                pixels = decode_file(path, job.size, data)
            except Unreadable as error:
                failed[position] = str(error)
                continue
            rows.seek((job.first_row + position) * len(pixels))
            n_written = 0
            while n_written < len(pixels):  # a disk that fills up takes a part before it refuses
                n_written += rows.write(pixels[n_written:])
    return failed


class WorkerPool:
    """Worker processes that can be killed in the middle of a task."""

    def __init__(self, n_workers: int) -> None:
        self.context = _Context()
        self.executor: Executor = ProcessPoolExecutor(
            n_workers, mp_context=self.context, initializer=_prepare_worker
        )

    def close(self) -> None:
        """Kill the workers; whatever they were still decoding is lost."""
        for worker in self.context.workers:
            worker.kill()
        self.executor.shutdown(cancel_futures=True)


class _Worker(SpawnProcess):
    """A process that does not run the caller's script again, which may have no `if __name__ ==
    "__main__"`."""

    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(SpawnContext):
    """Starts workers, and remembers them."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []

    def Process(self, *args: Any, **kwargs: Any) -> _Worker:  # type: ignore[override]
        """A new worker, as the executor asks for it."""
        worker = _Worker(*args, **kwargs)
        self.workers.append(worker)
        return worker


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process stops the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # whatever a decoder prints
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads would only take address space
    Image.MAX_IMAGE_PIXELS = None  # decode_file has its own limit, and says so
    try:
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, hard_limit))
    except (ImportError, ValueError, OSError):  # not POSIX, or a lower limit is set already
        return


def _end_with_parent() -> None:
    """End this worker when the main process was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
