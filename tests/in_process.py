"""Decoding without worker processes."""

from concurrent.futures import ThreadPoolExecutor


class ThreadPool:
    """Replacement for the pool of worker processes that uses threads of this process."""

    def __init__(self, n_workers: int) -> None:
        self.executor = ThreadPoolExecutor(n_workers)

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)
