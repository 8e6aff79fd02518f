"""A run that is interrupted goes on where it stopped, and ends as if nothing had happened.

python examples/resume.py
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from shoal.data.demo import digits
from shoal.discovery.images import discover_images
from shoal.discovery.narrator import Narrator
from shoal.discovery.outputs import answer
from shoal.discovery.settings import choose_settings


@contextmanager
def interrupt_training(what):
    """A progress bar that gives up in the middle of the second epoch."""

    def progress(done, total):
        if what == "training" and done > 0.75 * total:
            raise KeyboardInterrupt

    yield progress


def main() -> None:
    collection = digits()[0].subset(range(60))  # a few digits, a small network input: seconds, not minutes
    settings = choose_settings(recipe="digits", epochs=2, n_clusters=10, pixel_size=40, input_size=40)
    with tempfile.TemporaryDirectory() as place:
        whole = discover_images(collection, Path(place) / "whole", settings, device="cpu")
        try:
            narrator = Narrator(bar=interrupt_training)
            discover_images(collection, Path(place) / "run", settings, device="cpu", narrator=narrator)
        except KeyboardInterrupt:
            print("interrupted in epoch 2")
        run = discover_images(collection, Path(place) / "run", settings, device="cpu", resume=True)
        print(answer(run))
        same = (run.path / "assignments.csv").read_bytes() == (whole.path / "assignments.csv").read_bytes()
        print(f"the same as without the interruption: {same}")


if __name__ == "__main__":
    main()
