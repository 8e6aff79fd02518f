"""`shoal …` in a separate process, without the second that a fresh interpreter spends on imports.

A process that has imported what `shoal review` needs, but has started nothing, forks for each
command: the same program with its own pipes, environment, working directory and signals.
"""

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

IMPORTED = (
    "encodings.utf_8_sig",
    "shoal.review.replay",
    "shoal.server.app",
    "shoal.server.page_data",
    "PIL.JpegImagePlugin",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.utils",
    "uvicorn.lifespan.off",
)


class Forked:
    """A running command, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, *arguments: str) -> None:
        self.stdout, out = _pipe()
        self.stderr, err = _pipe()
        folder = str(Path.cwd())
        asked = {"arguments": arguments, "environment": dict(os.environ), "folder": folder}
        forks = _forks()
        socket.send_fds(forks, [json.dumps(asked).encode() + b"\n"], [out, err])
        os.close(out)
        os.close(err)
        self.pid = int(_line(forks)[0])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout: float = 600) -> None:
        """Wait until the command has ended; fail after `timeout` seconds."""
        until = time.monotonic() + timeout
        while self.is_alive():
            assert time.monotonic() < until, "it does not end"
            time.sleep(0.005)

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Wait until the command has ended; return its stdout and stderr."""
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def close(self) -> None:
        """Terminate the command and close its pipes."""
        if self.is_alive():
            self.send_signal(signal.SIGTERM)
            self.wait()
        self.stdout.close()
        self.stderr.close()


def _pipe() -> tuple[Any, int]:
    reading, writing = os.pipe()
    return os.fdopen(reading, encoding="utf-8"), writing


def _line(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a line and the file descriptors received with it; the line is empty if the other side
    has closed the connection."""
    found = b""
    ends = list[int]()
    while not found.endswith(b"\n"):
        part, came, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        if not part:
            return b"", ends
        found = found + part
        ends = [*ends, *came]
    return found, ends


@cache
def _forks() -> socket.socket:
    """Return the connection to the forking process, which is started on first use and ends with
    this process."""
    ours, its = socket.socketpair()
    command = [sys.executable, __file__, str(its.fileno())]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, pass_fds=[its.fileno()], env=env)
    its.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _fork_when_asked(number: int) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    CliRunner().invoke(
        importlib.import_module("shoal.cli.main").app, ["review", __file__]
    )  # refused, because this file is not a run
    signal.signal(signal.SIGCHLD, _bury)
    connection = socket.socket(fileno=number)
    while line := _line(connection):
        if not line[0]:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            _become(json.loads(line[0]), line[1])
        for end in line[1]:
            os.close(end)
        connection.sendall(f"{child}\n".encode())


def _become(asked: dict[str, Any], ends: list[int]) -> None:
    """Turn the forked process into the command."""
    for end, number in zip(ends, (1, 2), strict=True):
        os.dup2(end, number)
        os.close(end)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = ["shoal", *asked["arguments"]]
    from shoal.cli.main import main

    sys.exit(main())


def _bury(*_: object) -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


if __name__ == "__main__":
    _fork_when_asked(int(sys.argv[1]))
