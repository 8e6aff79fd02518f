"""What is held whole in the host's memory: the growth of the largest resident set of a process of
its own.

Pages of a mapped file count while they are in memory, so a bound is the file and what may be held
beside it.
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
FILE = 205 * MB
IN_FLOAT32 = 410 * MB
"""Bytes of 400,000 x 256 numbers."""


def growth(before: str, code: str) -> int:
    """Bytes by which the resident set has grown at most while code ran, after what came before."""
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
    """400,000 names take 50 MB; the numbers in float32 would take 410."""
    read = "from shoal.data.readers import read_embeddings"
    assert growth(read, f"found = read_embeddings({str(large)!r})") < FILE + 130 * MB


def test_of_unit_rows_nothing_is_held_whole_but_themselves(large: Path) -> None:
    """A second copy of the rows would take 410 MB; blocks of them take 80 to 150, as the allocator
    keeps them."""
    load = f"x = np.load({str(large)!r}, mmap_mode='r')"
    before = f"from shoal.clustering.sums import unit_points\n{load}\nunit_points(x[:10])"
    assert growth(before, "points = unit_points(x)") < FILE + IN_FLOAT32 + 250 * MB


def test_vectors_are_exported_line_by_line(tmp_path: Path) -> None:
    """100,000 x 48 numbers are 40 MB of text, and as much again for each copy of it."""
    x = np.random.default_rng(0).normal(size=(100_000, 48)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    before = f"""
from pathlib import Path
from types import SimpleNamespace
from shoal.discovery.export.table_files import to_projector
x, out = np.load({str(tmp_path / "x.npy")!r}, mmap_mode="r"), Path({str(tmp_path)!r})
job = SimpleNamespace(run=SimpleNamespace(embeddings=lambda: x), out=out, rows=[])
"""
    assert growth(before, "to_projector(job)") < x.nbytes + 20 * MB
    with (tmp_path / "vectors.tsv").open() as lines:
        assert next(lines).split("\t")[0] == f"{x[0, 0]:.6g}"
