"""A run that is killed goes on where it stopped, and ends as if nothing had happened.

python examples/resume.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from shoal.data.digits import digits
from shoal.discovery.answers import answer_in_words
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import Reporter


def discover(out, **options):
    """Discover the categories of a few digits, a small network input: seconds, not minutes."""
    torch.set_num_threads(1)  # both processes must round alike
    settings = choose_settings(recipe="digits", epochs=3, n_clusters=10, pixel_size=40, input_size=40)
    return discover_images(digits()[0].subset(range(60)), out, settings, device="cpu", **options)


def kill_after_first_epoch(out):
    """Start a run as a process of its own, and kill it when it says that the first epoch is over."""
    with subprocess.Popen([sys.executable, __file__, out], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line.startswith("epoch 1:"):
                child.kill()  # it cannot tidy up: on Linux and macOS this is SIGKILL
    print(f"killed after epoch 1, exit code {child.returncode}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = discover(Path(folder) / "whole")
        kill_after_first_epoch(str(Path(folder) / "run"))
        heard = []
        run = discover(Path(folder) / "run", resume=True, reporter=Reporter(detail=heard.append))
        print("resumed with", heard[0].partition(":")[0])
        print(answer_in_words(run))
        same = (run.path / "assignments.csv").read_bytes() == (whole.path / "assignments.csv").read_bytes()
        print(f"the same as without the interruption: {same}")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the process that is killed
        discover(sys.argv[1], reporter=Reporter(detail=lambda line: print(line, flush=True)))
    else:
        main()
