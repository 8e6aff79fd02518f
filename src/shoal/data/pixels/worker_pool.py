"""Worker processes fed from this one, each through a thread that waits for its replies.

Plain processes rather than multiprocessing: nothing is pickled, the caller's script is not imported again (so it needs
no `if __name__ == "__main__"`), torch may be loaded and its threads running, and a decoder that crashes takes down one
worker, not the run.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.data.pixels.store import explain
from shoal.errors import ShoalError

CHUNK = 16
"""Images per task: enough to make messages cheap, few enough to share the end of the work."""


MIN_SHARE = 8
"""Images for which one more worker is started: below, starting it takes longer than decoding them."""


@dataclass(frozen=True)
class DecodedBatch:
    """Images that are done: `positions` in the given paths, `rows` in the cache file, those failed with the reason."""

    positions: Sequence[int]
    first_row: int
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Task:
    first: int
    n_images: int


def available_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_files(
    paths: Sequence[str],
    data: Path,
    first_row: int,
    *,
    size: int,
    max_pixels: int,
    n_workers: int,
    chunk: int = CHUNK,
) -> Generator[DecodedBatch, None, None]:
    """Decode files into the rows of `data` from `first_row` on, in any order; close the iterator to stop early.

    Path i goes to row `first_row + i`. A worker is given `chunk` of them at a time.
    """
    n_workers = min(n_workers, -(-len(paths) // MIN_SHARE))
    chunk = min(chunk, -(-len(paths) // (4 * n_workers)))
    tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
    for first in range(0, len(paths), chunk):
        tasks.put(_Task(first, min(chunk, len(paths) - first)))
    workers = _Workers(
        paths, data.parent, first_row, tasks, [str(data), str(size), str(max_pixels)]
    )
    threads = [threading.Thread(target=workers.serve, daemon=True) for _ in range(n_workers)]
    try:
        for thread in threads:
            thread.start()
        n_left = len(paths)
        while n_left:
            done = workers.done.get()
            if isinstance(done, BaseException):
                raise done
            n_left -= len(done.positions)
            yield done
    finally:
        workers.stop()
        for thread in threads:
            thread.join()


class _Workers:
    """What the threads share: tasks waiting, batches done, and the workers to stop."""

    def __init__(
        self,
        paths: Sequence[str],
        folder: Path,
        first_row: int,
        tasks: "queue.SimpleQueue[_Task]",
        arguments: list[str],
    ) -> None:
        self.paths = paths
        self.folder = folder
        self.first_row = first_row
        self.tasks = tasks
        self.arguments = arguments
        self.done: queue.SimpleQueue[DecodedBatch | BaseException] = queue.SimpleQueue()
        self.workers: list[_Worker] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Take tasks until none is left; what goes wrong is raised in the main thread."""
        worker = None
        try:
            while not self.stopping.is_set():
                try:
                    task = self.tasks.get_nowait()
                except queue.Empty:
                    break
                if worker is not None and not worker.is_alive():
                    worker.close()
                    worker = None
                worker = worker or self._hire()
                if worker is not None:
                    self._settle(task, worker)
        except BaseException as error:
            if not self.stopping.is_set():
                self.done.put(error)
        finally:
            if worker is not None:
                worker.close()

    def stop(self) -> None:
        """End the workers, in the middle of a task if need be."""
        with self.lock:
            self.stopping.set()
            for worker in self.workers:
                worker.process.kill()

    def _hire(self) -> "_Worker | None":
        with self.lock:  # a worker started after stop() would outlive it
            if self.stopping.is_set():
                return None
            worker = _Worker(self.arguments)
            self.workers.append(worker)
        try:
            worker.wait_until_ready()
        except BaseException:
            worker.close()
            raise
        return worker

    def _settle(self, task: _Task, worker: "_Worker") -> None:
        positions = range(task.first, task.first + task.n_images)
        row = self.first_row + task.first
        reply = worker.ask({"row": row, "paths": [self.paths[i] for i in positions]})
        if reply is not None and "error" in reply:
            raise explain(self.folder, OSError(*reply["error"]))
        if reply is not None:
            failed = {
                task.first + int(position): reason for position, reason in reply["failed"].items()
            }
            self.done.put(DecodedBatch(positions, row, failed))
        elif task.n_images == 1:
            self.done.put(DecodedBatch(positions, row, {task.first: "the decoder crashed"}))
        else:  # one image of these crashed the worker: find out which
            for i in positions:
                self.tasks.put(_Task(i, 1))


class _Worker:
    def __init__(self, arguments: list[str]) -> None:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        # numpy's own threads would only take address space.
        env = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shoal.data.pixels.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=env,
            start_new_session=True,  # Ctrl-C is for the main process, which then stops the workers
            text=True,
        )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self) -> None:
        if self._read() is None and self.process.wait() >= 0:  # below 0: we killed it
            self.log.seek(0)
            last = self.log.read().decode(errors="replace").strip().rsplit("\n", 1)[-1]
            raise ShoalError(
                f"a decoding worker could not start ({sys.executable}): {last or 'no message'}"
            )

    def ask(self, task: dict[str, object]) -> dict[str, Any] | None:
        """The worker's reply, None if it died over the task."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read()

    def close(self) -> None:
        """Let the worker end, and wait for it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
        self.process.wait()
        self.log.close()

    def _read(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        reply: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        if reply is None:
            self.process.wait()  # so that is_alive tells the truth at once
        return reply
