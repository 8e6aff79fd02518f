"""Decoding without worker processes."""

from concurrent.futures import ThreadPoolExecutor


class ThreadPool:
    """Stands in for the pool of worker processes: the same work in threads of this process."""

    def __init__(self, n_workers: int) -> None:
        self.executor = ThreadPoolExecutor(n_workers)

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)
