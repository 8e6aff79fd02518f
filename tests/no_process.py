"""What a decoding worker does, without a process of its own."""

from pathlib import Path
from typing import Any


class NoProcess:
    """Stands in for a worker of the pool that decodes images."""

    def __init__(self, arguments: list[str]) -> None:
        self.data = Path(arguments[0])
        self.size = int(arguments[1])
        self.max_pixels = int(arguments[2])
        self.process = self  # whose `kill` ends the work between two tasks

    def kill(self) -> None: ...

    def is_alive(self) -> bool:
        return True

    def wait_until_ready(self) -> None: ...

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        from shoal.data.pixels.worker import decode_into

        try:
            with self.data.open("r+b", buffering=0) as rows:
                return {
                    "failed": decode_into(
                        rows, task["row"], task["paths"], self.size, self.max_pixels
                    )
                }
        except OSError as error:
            return {"error": [error.errno, error.strerror]}

    def close(self) -> None: ...
