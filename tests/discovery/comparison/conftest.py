from pathlib import Path

import numpy as np
import pytest

from conftest import COLORS, NAMES, TINY
from shoal.data.collection import Collection

SMALL = {
    "training.batch_size": 16,
    "training.epochs": 2,
    "training.views.pool": 4,
    "inference.shift.n_neighbors": 4,
}


@pytest.fixture(scope="session")
def collection() -> Collection:
    """150 images in five noisy colors; all five are known, and half of the images are labeled."""
    rng = np.random.default_rng(0)
    colors = np.arange(150) % 5
    noise = rng.integers(-45, 46, size=(150, 20, 20, 3))
    images = (COLORS[colors][:, None, None] + noise).clip(0, 255).astype(np.uint8)
    names = tuple(f"{i:03d}.png" for i in range(150))
    return Collection(names, np.where(rng.random(150) < 0.5, colors, -1), NAMES, images=images)


@pytest.fixture(scope="session")
def options(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Arguments of `choose_comparison` for short training runs of a tiny encoder."""
    config = tmp_path_factory.mktemp("config") / "tiny.yaml"
    config.write_text(TINY.format(encoder=tiny_encoder))
    return {"config": config, "changes": SMALL}
