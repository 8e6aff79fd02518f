"""Small real image files, written by the tests."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def write_image(file: Path, seed: int = 0, size: tuple[int, int] = (12, 10)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


@pytest.fixture
def decoded_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode in threads: a process takes longer to start than a few small images to decode."""
    monkeypatch.setattr("shoal.data.pixels.workers.worker_pool", ThreadPoolExecutor)


@pytest.fixture
def make_images(tmp_path: Path) -> Callable[[Iterable[str]], Path]:
    """Write images under tmp_path/photos, by relative name, and return that folder."""

    def make(names: Iterable[str]) -> Path:
        for seed, name in enumerate(names):
            write_image(tmp_path / "photos" / name, seed)
        return tmp_path / "photos"

    return make
