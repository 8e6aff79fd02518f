"""Start Python programs as torchrun does: several processes that form one group."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PATH = f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"


def start_processes(code: str, n: int = 2) -> list[subprocess.Popen]:
    """Start `code` in n processes that know their rank and a free port."""
    shared = {"PYTHONPATH": PATH, "WORLD_SIZE": str(n)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = []
    for rank in range(n):
        env = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code], env=env, **pipes))
    return started


def start_torchrun(*words: str) -> subprocess.Popen:
    """Start torchrun."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PATH}, **pipes)


def start_nodes(code: str, folder: Path, per_node: int = 1) -> list[subprocess.Popen]:
    """Start torchrun twice with one rendezvous port, as on two machines; either may get the main
    process."""
    script = folder / "run.py"
    script.write_text(code)
    meet = ["--nnodes", "2", "--nproc-per-node", str(per_node)]
    meet += ["--rdzv-backend", "c10d", "--rdzv-id", "test"]
    meet += ["--rdzv-endpoint", f"localhost:{free_port()}", str(script)]
    return [start_torchrun("--node-rank", str(node), *meet) for node in range(2)]


def end_first(started: list[subprocess.Popen], timeout_s: float = 600) -> tuple[int, str]:
    """Wait for the first process only, and kill the others; return its exit code and stderr."""
    try:
        stderr = started[0].communicate(timeout=timeout_s)[1]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return started[0].returncode, stderr


def finish_processes(started: list[subprocess.Popen], timeout_s: float = 600) -> list[str]:
    """Wait for all processes and return the stdout of each; if one fails, kill the others and
    fail."""
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(
        errors for _, errors in outputs
    )
    return [printed for printed, _ in outputs]


def free_port() -> int:
    """Return a free port below the ephemeral range, so that no outgoing connection takes it before
    the processes do."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port
