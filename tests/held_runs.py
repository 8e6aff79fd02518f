"""A real `shoal` command in a separate process that pauses at a known point until it reads a line
from stdin."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal
import sys
import threading
import time
from contextlib import contextmanager

import torch

from shoal.cli import console, main

stage, at = sys.argv[1], int(sys.argv[2])
sys.argv = ["shoal", *sys.argv[3:]]
torch.set_num_threads(1)
# A shell has it ignored by what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
show, held = console.progress, []

def say_when_asked():
    handler = signal.getsignal(signal.SIGINT)
    print("held", flush=True)
    while signal.getsignal(signal.SIGINT) is handler:
        time.sleep(0.01)
    print("asked", flush=True)

@contextmanager
def hold(what, *more):
    with show(what, *more) as progress:
        def tell(done, total):
            progress(done, total)
            if what == stage and done >= at and not held:
                held.append(done)
                threading.Thread(target=say_when_asked, daemon=True).start()
                sys.stdin.readline()
        yield tell

console.progress = hold
main.main()
"""


def start_held(stage: str, at: int, *arguments: object) -> "subprocess.Popen[str]":
    """Start a command; return when its progress in `stage` has reached `at`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, stage, str(at), *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "held\n", process.communicate()[1]
    return process


HOLD_LOCK = """
import sys
from shoal.runs.run import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold_lock(folder: Path) -> "subprocess.Popen[str]":
    """Start a process that holds the lock on a folder until it reads a line from stdin."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(folder)], **pipes, text=True, env=env
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ask_to_stop(process: "subprocess.Popen[str]") -> None:
    """Send Ctrl-C to a process that is paused in training, and wait until it has handled it."""
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
