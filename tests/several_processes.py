"""Python programs started the way torchrun starts them: several processes that find each other."""

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
    """Start torchrun itself."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PATH}, **pipes)


def start_nodes(code: str, folder: Path, per_node: int = 1) -> list[subprocess.Popen]:
    """Two calls of torchrun that meet at a port, as on two machines; which of them has the main
    process is open."""
    script = folder / "run.py"
    script.write_text(code)
    meet = ["--nnodes", "2", "--nproc-per-node", str(per_node)]
    meet += ["--rdzv-backend", "c10d", "--rdzv-id", "test"]
    meet += ["--rdzv-endpoint", f"localhost:{free_port()}", str(script)]
    return [start_torchrun("--node-rank", str(node), *meet) for node in range(2)]


def end_first(started: list[subprocess.Popen], timeout_s: float = 600) -> tuple[int, str]:
    """Wait for the first process alone, whatever becomes of it: its exit code, and what it has said
    on stderr."""
    try:
        said = started[0].communicate(timeout=timeout_s)[1]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return started[0].returncode, said


def finish_processes(started: list[subprocess.Popen], timeout_s: float = 600) -> list[str]:
    """Wait for all of them; what each has printed. One that fails is an error, and takes the others
    with it."""
    try:
        said = [process.communicate(timeout=timeout_s) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(
        errors for _, errors in said
    )
    return [printed for printed, _ in said]


def free_port() -> int:
    """A port that nobody has now, and that no connection is given before the processes take it, as
    those above are."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port
