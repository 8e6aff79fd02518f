"""A stand-in for CUB with six flat colors, four of them known, and a tiny encoder."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoal.data.benchmarks.benchmark import ClassSplit, OfficialImages, build
from shoal.methods import method
from shoal.reproduce import loaded_dataset, runner
from shoal.reproduce.plan import ReproduceOptions
from shoal.reproduce.runner import reproduce
from small_models import make_tiny_encoder

COLORS = np.array(
    [[200, 40, 40], [40, 200, 40], [40, 40, 200], [190, 190, 40], [40, 190, 190], [190, 40, 190]],
    dtype=np.int64,
)
N_EACH = {"train": 20, "test": 8}
SPLIT = ClassSplit("cub", (0, 1, 2, 3), (4, 5), (), 0.5, 0, "0" * 64)


def read_stand_in(name, root, *, part="train"):
    rng = np.random.default_rng(0 if part == "train" else 1)
    class_ids = np.repeat(np.arange(6), N_EACH[part])
    images = COLORS[class_ids][:, None, None] + rng.integers(
        -60, 61, size=(len(class_ids), 16, 16, 3)
    )
    official = OfficialImages(
        tuple(f"{part}-{i:03d}" for i in range(len(class_ids))),
        class_ids,
        tuple(f"class {i}" for i in range(6)),
        "a stand-in",
        images=images.clip(0, 255).astype(np.uint8),
    )
    return build(name, official, SPLIT, part)


OPTIONS = ReproduceOptions(
    encoder="efficientnet-lite0",
    input_size=14,
    methods=("agglomerative", "gcd", "cms"),
    changes={
        "training.epochs": 2,
        "training.batch_size": 16,
        "head.width": 32,
        "head.dim": 12,
        "head.bottleneck": 8,
    },
)


@pytest.fixture(autouse=True, scope="module")
def tiny():
    """Replace the encoder and the reader of benchmarks; record the datasets and parts read."""
    asked = {"reads": []}

    def read(name, root, *, part="train"):
        asked["reads"].append((name, part))
        return read_stand_in(name, root, part=part)

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for module in (method, runner):
            patch.setattr(module, "load_encoder", make_tiny_encoder)
        patch.setattr(loaded_dataset, "read_benchmark", read)
        yield asked
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture(scope="session")
def run(folder):
    """Reproduce a table or figure on the stand-in, in the folder that all tests share."""

    def run(name, *, out=folder, seeds=(0,), roots=None, options=OPTIONS, log=None):
        roots = roots or {"cub": "nowhere"}
        (found,) = reproduce(
            [name], roots, out, device=torch.device("cpu"), seeds=seeds, options=options, log=log
        )
        return found

    return run


@pytest.fixture
def stand_in():
    return SimpleNamespace(options=OPTIONS, n_each=N_EACH, split=SPLIT, read=read_stand_in)
