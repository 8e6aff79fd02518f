"""A run that is killed continues where it stopped, and ends as if nothing had happened.

python examples/resume.py
"""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import shoal


class Lines(logging.Handler):
    """Passes on what a run logs; at level DEBUG that is a line per epoch too."""

    def __init__(self, take) -> None:
        super().__init__()
        self.take = take

    def emit(self, record) -> None:
        """Take one line."""
        self.take(record.getMessage())


def discover(out, take_line=lambda line: None, **options):
    """Discover the categories of a few digits, a small network input: seconds, not minutes."""
    torch.set_num_threads(1)  # both processes must round alike
    logger = logging.getLogger("shoal")
    handler = Lines(take_line)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    digits = load_digits()
    images = (digits.images[:60] * 15.9).astype("uint8")
    labels = [
        str(digit) if digit < 5 and i % 2 == 0 else None
        for i, digit in enumerate(digits.target[:60])
    ]
    small = {"epochs": 3, "n_clusters": 10, "pixel_size": 40, "input_size": 40}
    small["changes"] = {"training.batch_size": 32, "training.views.pool": 2}
    small["train"] = True  # so few labels could not show that it helps
    try:
        return shoal.discover(
            images, labels=labels, out=out, device="cpu", verbose=False, **small, **options
        )
    finally:
        logger.removeHandler(handler)


def kill_after_first_epoch(out):
    """Start a run as a process of its own, and kill it when it says that the first epoch is
    over."""
    with subprocess.Popen(
        [sys.executable, __file__, out], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if line.startswith("epoch 1:"):
                child.kill()  # it cannot tidy up: on Linux and macOS this is SIGKILL
    print(f"killed after epoch 1, exit code {child.returncode}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = discover(Path(folder) / "whole")
        kill_after_first_epoch(str(Path(folder) / "run"))
        lines = []
        run = discover(Path(folder) / "run", lines.append, resume=True)
        print(
            "resumed with",
            next(line for line in lines if line.startswith("epoch")).partition(":")[0],
        )
        print(f"{run.n_clusters} categories")
        same = (run.path / "assignments.csv").read_bytes() == (
            whole.path / "assignments.csv"
        ).read_bytes()
        print(f"the same as without the interruption: {same}")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the process that is killed
        discover(sys.argv[1], lambda line: print(line, flush=True))
    else:
        main()
