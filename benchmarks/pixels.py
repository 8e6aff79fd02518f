"""Time the pixel cache against a plain Pillow loop with as many processes.

python benchmarks/pixels.py [--n 5000] [--size 256] [--workers 2] [--repeats 3] [--record FILE]
"""

import argparse
import io
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageFilter

from records import write_table
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection

EXTENT = (500, 375)
QUALITY = 90
SEED = 0
N_DISTINCT = 500


@dataclass(frozen=True)
class Measurement:
    """The cost of one measurement."""

    what: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    images_per_s: float


def write_jpegs(folder: Path, n_images: int) -> None:
    """Write photograph-like JPEGs; after `N_DISTINCT` of them their bytes repeat."""
    distinct: list[bytes] = []
    rng = np.random.default_rng(SEED)
    for i in range(n_images):
        if i < N_DISTINCT:
            distinct.append(jpeg(rng))
        (folder / f"{i:06d}.jpg").write_bytes(distinct[i % N_DISTINCT])


def jpeg(rng: np.random.Generator) -> bytes:
    """Return a JPEG with smooth shapes, edges and fine grain."""
    coarse, fine = (
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).resize(
            EXTENT, Image.Resampling.BICUBIC
        )
        for shape in ((12, 16, 3), (94, 125, 3))
    )
    blend = np.asarray(
        Image.blend(coarse, fine.filter(ImageFilter.GaussianBlur(1)), 0.35), dtype=np.float32
    )
    grain = rng.normal(0, 6, blend.shape)
    out = io.BytesIO()
    Image.fromarray(np.clip(blend + grain, 0, 255).astype(np.uint8)).save(
        out, "JPEG", quality=QUALITY
    )
    return out.getvalue()


def bare_decode(task: tuple[str, int]) -> int:
    """Decode with plain Pillow: open, convert, resize the shorter side, crop the center."""
    path, size = task
    with Image.open(path) as image:
        image = image.convert("RGB")
        scale = size / min(image.size)
        extent = (round(image.width * scale), round(image.height * scale))
        image = image.resize(extent, Image.Resampling.BICUBIC)
        left = (extent[0] - size) // 2
        top = (extent[1] - size) // 2
        return len(image.crop((left, top, left + size, top + size)).tobytes())


def bare_loop(paths: list[str], size: int, n_workers: int) -> None:
    with multiprocessing.get_context("fork").Pool(n_workers) as pool:
        n_bytes = sum(
            pool.imap_unordered(bare_decode, [(path, size) for path in paths], chunksize=16)
        )
        pool.close()
        pool.join()
    assert n_bytes == len(paths) * size * size * 3


def measure(what: str, n_images: int, work: Callable[[], None]) -> Measurement:
    """Time a function in a separate process, to measure its CPU seconds and peak memory alone.

    Peak memory is that of the largest process, including the pages of a mapped file that it read.
    """
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=_measured, args=(queue, work))
    process.start()
    process.join()
    assert process.exitcode == 0, f"{what} failed"
    wall_s, cpu_s, peak_mb = queue.get()
    return Measurement(what, wall_s, cpu_s, peak_mb, n_images / wall_s)


def _measured(queue: "multiprocessing.queues.SimpleQueue", work: Callable[[], None]) -> None:
    before = time.perf_counter()
    work()
    wall_s = time.perf_counter() - before
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(use.ru_utime + use.ru_stime for use in usage)
    queue.put((wall_s, cpu_s, max(use.ru_maxrss for use in usage) / 1024))


def run(n_images: int, size: int, n_workers: int, repeats: int) -> list[Measurement]:
    with tempfile.TemporaryDirectory(prefix="pixels-") as scratch:
        folder = Path(scratch) / "jpegs"
        folder.mkdir()
        write_jpegs(folder, n_images)
        collection = read_collection(folder, labels=False)
        paths = [f"{folder}/{name}" for name in collection.names]

        def load(cache: Path, reading: bool) -> None:
            pixels = load_pixels(collection, size, cache=cache, n_workers=n_workers)
            assert len(pixels) == n_images
            assert not pixels.skipped
            if reading:
                checksum = sum(
                    int(pixels[first : first + 256].max()) for first in range(0, n_images, 256)
                )
                assert checksum > 0

        found = []
        # Alternate, so that a busy moment does not affect only one of them.
        for repeat in range(repeats):
            cache = Path(scratch) / f"cache-{repeat}"
            found.append(
                measure("bare Pillow loop", n_images, lambda: bare_loop(paths, size, n_workers))
            )
            found.append(measure("cold cache", n_images, lambda cache=cache: load(cache, False)))
            found.append(
                measure(
                    "warm cache, every pixel read", n_images, lambda cache=cache: load(cache, True)
                )
            )
        return found


def best(found: list[Measurement]) -> list[Measurement]:
    """Return the fastest measurement of each kind, because noise only adds time."""
    kinds = dict.fromkeys(m.what for m in found)
    return [min((m for m in found if m.what == kind), key=lambda m: m.wall_s) for kind in kinds]


def render(found: list[Measurement], title: str) -> list[str]:
    bare = found[0]
    lines = [
        f"| {title} | wall s | CPU s | peak RSS MB | images/s | of the bare loop |",
        "|---|---|---|---|---|---|",
    ]
    for m in found:
        bare = m if m.what == bare.what else bare  # the loop of the same round
        share = m.images_per_s / bare.images_per_s
        costs = f"{m.wall_s:.2f} | {m.cpu_s:.2f} | {m.peak_mb:.0f} | {m.images_per_s:,.0f}"
        lines.append(f"| {m.what} | {costs} | {share:.2f} x |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=5000, help="images")
    parser.add_argument("--size", type=int, default=256, help="pixels along a side")
    parser.add_argument("--workers", type=int, default=2, help="processes, for both")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of all measurements")
    parser.add_argument("--record", type=Path, help="write the result to this file")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found = run(arguments.n, arguments.size, arguments.workers, arguments.repeats)
    rows = [*render(best(found), f"{arguments.n:,} images"), "", *render(found, "every round")]
    width, height = EXTENT
    n_distinct = min(arguments.n, N_DISTINCT)
    notes = (
        f"{arguments.n:,} generated JPEGs ({n_distinct} distinct) of {width} x {height}, quality "
        f"{QUALITY}, seed {SEED}; Pillow {PIL.__version__}; load average {load:.2f}. Measurements "
        "alternate; the first table has the fastest of each. Files are in the page cache."
    )
    write_table(rows, arguments.record, notes)


if __name__ == "__main__":
    main()
