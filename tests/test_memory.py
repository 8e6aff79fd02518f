"""Peak memory of the host, measured as the growth of the resident set of a separate process.

Pages of a mapped file count while they are in memory, so a bound is the size of the file plus the
allowed memory.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="read from Linux's /proc"),
]

MEASURED = """
import gc
import numpy as np
import torch
torch.set_num_threads(1)

# VmRSS is now, VmHWM at most; what getrusage says begins with the process that started this one.
def memory(name):
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status[name].split()[0]) * 1024

{before}
gc.collect()
start = memory("VmRSS")
{code}
print(memory("VmHWM") - start)
"""

MB = 1_000_000

# Bytes of 400,000 x 256 numbers
FILE = 205 * MB
IN_FLOAT32 = 410 * MB


def growth(before: str, code: str) -> int:
    """Return by how many bytes the resident set peaked in `code` above its size after `before`."""
    words = [sys.executable, "-c", MEASURED.format(before=before, code=code)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 400,000 x 256 float16."""
    file = tmp_path_factory.mktemp("large") / "x.npy"
    x = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=(400_000, 256))
    x[:] = np.random.default_rng(0).normal(size=(1, 256)).astype(np.float16)
    x.flush()
    return file


def test_a_file_is_checked_and_named_without_being_converted(large: Path) -> None:
    """400,000 names take 50 MB; a float32 copy of the array would take 410 MB."""
    read = "from shoal.data.readers import read_embeddings"
    assert growth(read, f"found = read_embeddings({str(large)!r})") < FILE + 130 * MB


def test_of_unit_rows_nothing_is_held_whole_but_themselves(large: Path) -> None:
    """A second copy of the rows would take 410 MB; blocks of them take 80 to 150 MB, depending on
    what the allocator retains."""
    load = f"x = np.load({str(large)!r}, mmap_mode='r')"
    before = f"from shoal.clustering.sums import unit_points\n{load}\nunit_points(x[:10])"
    assert growth(before, "points = unit_points(x)") < FILE + IN_FLOAT32 + 250 * MB


def test_vectors_are_exported_line_by_line(tmp_path: Path) -> None:
    """100,000 x 48 numbers would take 40 MB as text, and each copy of it as much again."""
    x = np.random.default_rng(0).normal(size=(100_000, 48)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    before = f"""
from pathlib import Path
from types import SimpleNamespace
from shoal.discovery.export.formats import to_projector
x, out = np.load({str(tmp_path / "x.npy")!r}, mmap_mode="r"), Path({str(tmp_path)!r})
job = SimpleNamespace(run=SimpleNamespace(embeddings=lambda: x), out=out, rows=[])
"""
    assert growth(before, "to_projector(job)") < x.nbytes + 20 * MB
    with (tmp_path / "vectors.tsv").open() as lines:
        assert next(lines).split("\t")[0] == f"{x[0, 0]:.6g}"


def test_a_batch_is_embedded_a_few_images_at_a_time() -> None:
    """256 images of 224 x 224 pixels take 154 MB in float32, and 462 MB with the copies made by
    preprocessing.

    32 at a time take a sixth of that, or more until the allocator returns their blocks.
    """
    before = """
from torch import nn
from shoal.encoders.vision import embed
from shoal.encoders.vision import Encoder, InputFormat, Parts
parts = Parts(
    stem=nn.AvgPool2d(224),
    blocks=[],
    finish=nn.Flatten(),
    is_finish_trained=False,
    feature_dim=3,
)
input_format = InputFormat(size=224, mean=(0.5,) * 3, std=(0.5,) * 3)
encoder = Encoder("mean", parts, input_format, 0)
pixels = np.ones((256, 256, 256, 3), dtype=np.uint8)
embed(pixels[:1], encoder)
"""
    assert growth(before, "embed(pixels, encoder)") < 300 * MB
