"""Decode image files in worker processes, which write pixels into rows of the cache file.

Workers import neither numpy nor torch, so that they start fast.
"""

import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from pathlib import Path
from types import ModuleType

from PIL import Image

from shoal.boxes import split_name
from shoal.data.pixels.decoding import Unreadable, decode_file, fetch
from shoal.data.storage import is_stored
from shoal.errors import ShoalError
from shoal.files import writing

# Images per task: enough to make messages cheap, few enough to balance the load
CHUNK = 16

# The same from parquet shards, whose rows are stored in groups of about 100
CHUNK_OF_ROWS = 128

# Images per worker below which its start takes longer than the decoding
MIN_SHARE = 8

# Address space of a worker, which limits decompression bombs
MAX_BYTES = 4 << 30

# Images that are downloaded while one is decoded
N_AHEAD = 8

# Positions of finished paths, and the reason for each one that cannot be decoded
Batch = tuple[range, dict[int, str]]


@dataclass(frozen=True)
class DecodingJob:
    """Where to write decoded images: path i goes to row `first_row + i` of the file `data`."""

    data: Path
    first_row: int
    size: int


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_files(
    job: DecodingJob, paths: Sequence[str], n_workers: int
) -> Generator[Batch, None, None]:
    """Decode files in worker processes and yield batches in any order; close the iterator to stop
    early.

    A worker gets several files at a time. If one crashes, the files in progress are decoded one by
    one, and the file that crashes a worker again counts as failed.
    """
    n_workers = min(n_workers, -(-len(paths) // MIN_SHARE))
    chunk = CHUNK_OF_ROWS if paths[0].startswith("row:") else CHUNK
    chunk = min(chunk, -(-len(paths) // (4 * n_workers)))

    waiting = deque(_tasks(paths, chunk))
    running: dict[Future[dict[int, str]], range] = {}
    while waiting:
        try:
            with worker_pool(n_workers) as pool:
                while waiting or running:
                    while waiting and len(running) < 2 * n_workers:
                        running[_submit(pool, job, waiting[0], paths)] = waiting[0]
                        waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        with writing(job.data.parent):
                            failed = future.result()
                        yield running.pop(future), failed
        except BrokenProcessPool:
            suspects = deque(position for task in running.values() for position in task)
            running.clear()
            while suspects:
                yield from _decode_singly(job, suspects, paths)


def _tasks(paths: Sequence[str], chunk: int) -> Iterator[range]:
    """Yield ranges of `chunk` positions, or of more so that the boxes of an image stay together."""
    start = 0
    while start < len(paths):
        stop = min(start + chunk, len(paths))
        last = split_name(paths[stop - 1])[0]
        while stop < len(paths) and split_name(paths[stop])[0] == last:
            stop += 1
        yield range(start, stop)
        start = stop


def _decode_singly(
    job: DecodingJob, suspects: "deque[int]", paths: Sequence[str]
) -> Generator[Batch, None, None]:
    """Decode the images in `suspects` one at a time, until a worker crashes or none is left."""
    with worker_pool(1) as pool:
        try:
            _submit(pool, job, range(0), paths).result()
        except BrokenProcessPool as error:
            raise ShoalError(
                f"a decoding worker could not start ({sys.executable}) or was killed; see its "
                "output above"
            ) from error
        while suspects:
            task = range(suspects[0], suspects[0] + 1)
            try:
                failed = _submit(pool, job, task, paths).result()
            except BrokenProcessPool:
                yield task, {suspects.popleft(): "the decoder crashed"}
                return
            suspects.popleft()
            yield task, failed


def _submit(
    pool: Executor, job: DecodingJob, task: range, paths: Sequence[str]
) -> Future[dict[int, str]]:
    """Let a worker decode some paths; a worker that is started for it does not import the caller's
    script, which may lack a `__main__` guard, and never sees Ctrl-C."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with _block_ctrl_c():
            return pool.submit(decode_rows, job, task, [paths[i] for i in task])
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _block_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C here; a worker started meanwhile inherits the mask and never sees it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # it would unblock Ctrl-C when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def worker_pool(n_workers: int) -> Iterator[Executor]:
    """Start worker processes when they are needed, and kill them at the end of the block; images in
    progress are lost."""
    pool = ProcessPoolExecutor(
        n_workers, mp_context=get_context("spawn"), initializer=_prepare_worker
    )
    try:
        yield pool
    finally:
        for worker in list(pool._processes.values()):
            worker.kill()
        pool.shutdown(cancel_futures=True)


def decode_rows(job: DecodingJob, positions: range, paths: Sequence[str]) -> dict[int, str]:
    """Write the pixels of each path into its row; return the reason for each that failed."""
    failed = {}
    is_parquet = bool(paths) and paths[0].startswith("row:")  # read forward, row by row
    n_ahead = 1 if is_parquet else N_AHEAD
    with job.data.open("r+b") as rows, ThreadPoolExecutor(n_ahead) as threads:
        fetched = [threads.submit(fetch, path) for path in paths if is_stored(path)]
        for i, (position, path) in enumerate(zip(positions, paths, strict=True)):
            data = None
            try:
                if fetched:  # all paths are stored, or none
                    data = fetched[i].result()
                pixels = decode_file(path, job.size, data)
            except Unreadable as error:
                failed[position] = str(error)
            else:
                rows.seek((job.first_row + position) * len(pixels))
                rows.write(pixels)
    return failed


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process stops the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide what decoders print
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads would use up address space
    Image.MAX_IMAGE_PIXELS = None  # decode_file has its own limit
    try:
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, hard_limit))
    except (ImportError, ValueError, OSError):  # not POSIX, or a lower limit is set
        return


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
