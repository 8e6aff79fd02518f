"""Resume a run that was killed; its result equals that of an uninterrupted run.

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


class LineHandler(logging.Handler):
    """Calls a function with each line that a run logs."""

    def __init__(self, on_line) -> None:
        super().__init__()
        self.on_line = on_line

    def emit(self, record) -> None:
        """Call the function with the message of a record."""
        self.on_line(record.getMessage())


def discover(out, on_line=lambda line: None, **options):
    """Discover the categories of 60 small images, which takes seconds."""
    torch.set_num_threads(1)  # with other numbers of threads, sums are rounded differently
    logger = logging.getLogger("shoal")
    handler = LineHandler(on_line)
    logger.setLevel(logging.DEBUG)  # includes a line per epoch
    logger.addHandler(handler)
    digits = load_digits()
    images = (digits.images[:60] * 15.9).astype("uint8")
    labels = [
        str(digit) if digit < 5 and i % 2 == 0 else None
        for i, digit in enumerate(digits.target[:60])
    ]
    settings = {"epochs": 3, "n_clusters": 10, "pixel_size": 40, "input_size": 40}
    settings["changes"] = {"training.batch_size": 32, "training.views.pool": 2}
    settings["train"] = True  # by default, training is skipped with so few labels
    try:
        return shoal.discover(
            images, labels=labels, out=out, device="cpu", verbose=False, **settings, **options
        )
    finally:
        logger.removeHandler(handler)


def kill_after_first_epoch(out):
    """Start a run in another process, and kill that process after the first epoch."""
    with subprocess.Popen(
        [sys.executable, __file__, out], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if line.startswith("epoch 1:"):
                child.kill()  # SIGKILL on Linux and macOS, so the process cannot clean up
    print(f"killed after epoch 1, exit code {child.returncode}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = discover(Path(folder) / "uninterrupted")
        kill_after_first_epoch(str(Path(folder) / "run"))
        lines = []
        run = discover(Path(folder) / "run", lines.append, resume=True)
        first_epoch = next(line for line in lines if line.startswith("epoch"))
        print("resumed with", first_epoch.partition(":")[0])
        print(f"{run.n_clusters} categories")
        table = (run.path / "assignments.csv").read_bytes()
        is_same = table == (uninterrupted.path / "assignments.csv").read_bytes()
        print(f"the same as without the interruption: {is_same}")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the process that is killed
        discover(sys.argv[1], lambda line: print(line, flush=True))
    else:
        main()
