"""A real `shoal` command in a process of its own that stops at a known point and waits for a line on its stdin."""

import os
import subprocess
import sys

PROGRAM = """
import sys
from contextlib import contextmanager

import torch

from shoal.cli import console, main

stage, at = sys.argv[1], int(sys.argv[2])
sys.argv = ["shoal", *sys.argv[3:]]
torch.set_num_threads(1)
show, held = console.progress, []

@contextmanager
def hold(what, *more):
    with show(what, *more) as progress:
        def tell(done, total):
            progress(done, total)
            if what == stage and done >= at and not held:
                held.append(done)
                print("held", flush=True)
                sys.stdin.readline()
        yield tell

console.progress = hold
main.main()
"""


def start_held(stage: str, at: int, *arguments: object) -> "subprocess.Popen[str]":
    """Start a command; returns when its progress in `stage` has come to `at`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, stage, str(at), *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "held\n", process.communicate()[1]
    return process
