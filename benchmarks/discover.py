"""Measure the stages of `shoal discover`, alternating between two checkouts.

python benchmarks/discover.py [--n 1000] [--images FOLDER_OR_ZIP] [--device cpu]
    [--src OTHER/src] [--rounds 1] [--record FILE] [-- OPTIONS OF shoal discover]

Images are generated, or taken evenly from a folder or zip with a folder per class; half of the
classes are known, half of their images labeled. A stage begins where the command reports it on
stderr. Each run starts without cached pixels, embeddings and views; a converted encoder stays
cached.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from records import commit_of, write_table

THIS_SOURCE = Path(__file__).resolve().parent.parent / "src"
SEED = 0
N_CLASSES = 20
SIDE = 320

# Characters of the longest bar
WIDTH = 30


@dataclass
class Stage:
    """The cost between two lines of output."""

    name: str
    wall_s: float
    cpu_s: float
    peak_mb: float


def draw_image(rng: np.random.Generator, base: np.ndarray) -> bytes:
    """Return a JPEG with a coarse pattern of its class mixed with a random one."""
    noise = rng.integers(0, 256, base.shape, dtype=np.uint8)
    mixed = (0.6 * np.roll(base, rng.integers(0, 3, 2), axis=(0, 1)) + 0.4 * noise).astype(np.uint8)
    large = np.asarray(
        Image.fromarray(mixed).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float32
    )
    out = io.BytesIO()
    noisy = np.clip(large + rng.normal(0, 6, large.shape), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(out, "JPEG", quality=90)
    return out.getvalue()


def generated_images(n_images: int) -> dict[str, bytes]:
    """Return generated images by name, which starts with the class."""
    rng = np.random.default_rng(SEED)
    bases = rng.integers(0, 256, (N_CLASSES, 8, 8, 3), dtype=np.uint8)
    return {
        f"c{i % N_CLASSES:02d}/{i:06d}.jpg": draw_image(rng, bases[i % N_CLASSES])
        for i in range(n_images)
    }


def sampled_images(source: Path, n_images: int) -> dict[str, bytes]:
    """Return images sampled evenly from a folder or a zip, by name, which starts with the class."""
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.is_file())
        chosen = [files[i] for i in np.linspace(0, len(files) - 1, n_images).astype(int)]
        return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in chosen}
    with zipfile.ZipFile(source) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        chosen_names = [names[i] for i in np.linspace(0, len(names) - 1, n_images).astype(int)]
        return {"/".join(name.split("/")[-2:]): archive.read(name) for name in chosen_names}


def write_images(files: dict[str, bytes], folder: Path) -> Path:
    """Write the images without their classes, and a table of labels."""
    (folder / "photos").mkdir()
    rng = np.random.default_rng(SEED)
    classes = sorted({name.split("/")[0] for name in files})
    known = set(rng.permutation(classes)[: len(classes) // 2])
    rows = ["path,label"]
    for i, (name, content) in enumerate(files.items()):
        label = name.split("/")[0]
        file = f"{i:06d}{Path(name).suffix}"
        (folder / "photos" / file).write_bytes(content)
        if label in known and rng.random() < 0.5:
            rows.append(f"{file},{label}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder / "photos"


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of its finished children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def take_peak_mb(pid: int) -> float:
    """Return the peak memory since the last call."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) / 1024


def run(source: Path, folder: Path, device: str, options: list[str]) -> list[Stage]:
    """Run the command of a checkout once."""
    cache = folder / "cache"
    out = folder / "run"
    for old in (cache / "pixels", cache / "embeddings", cache / "views", out):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-m", "shoal", "discover", str(folder / "photos")]
    command += ["--labels", str(folder / "labels.csv"), "--out", str(out)]
    command += ["--device", device, *options]
    path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "SHOAL_CACHE": str(cache)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    stages = []
    name = "start: imports, encoder, reading the folder"
    wall = time.perf_counter()
    cpu = 0.0
    output: list[str] = []
    for line in iter(process.stderr.readline, ""):
        output.append(line)
        text = line.strip()
        is_training = text.startswith("Frozen result")
        is_stage = text.endswith("…") or is_training
        # A process that has ended no longer reports its peak memory.
        is_running = "VmHWM" in Path(f"/proc/{process.pid}/status").read_text()
        if not (is_stage and is_running):
            continue
        now = time.perf_counter()
        spent = cpu_seconds(process.pid)
        stages.append(Stage(name, now - wall, spent - cpu, take_peak_mb(process.pid)))
        name = "after the frozen result" if is_training else text.removesuffix("…").strip()
        wall = now
        cpu = spent
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit("".join(output))
    wall_s = time.perf_counter() - wall
    cpu_s = used.ru_utime + used.ru_stime - cpu
    return [*stages, Stage(f"{name}, to the end", wall_s, cpu_s, used.ru_maxrss / 1024)]


def render(stages: list[Stage], title: str) -> list[str]:
    """Return the rows of a table, a stage each, the sum last."""
    longest = max(stage.wall_s for stage in stages)
    rows = [f"| {title} | seconds | CPU seconds | peak MiB | |", "|---|---|---|---|---|"]
    for stage in stages:
        bar = "█" * round(WIDTH * stage.wall_s / longest)
        costs = f"{stage.wall_s:.1f} | {stage.cpu_s:.1f} | {stage.peak_mb:.0f}"
        rows.append(f"| {stage.name} | {costs} | {bar} |")
    wall = sum(stage.wall_s for stage in stages)
    cpu = sum(stage.cpu_s for stage in stages)
    peak = max(stage.peak_mb for stage in stages)
    return [*rows, f"| all | {wall:.1f} | {cpu:.1f} | {peak:.0f} | |"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1000, help="images")
    parser.add_argument(
        "--images", type=Path, help="a folder or zip to sample from; generated unless given"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--src", type=Path, help="the src folder of another checkout to alternate with"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write the result to this file")
    parser.add_argument("options", nargs="*", help="options of shoal discover, after --")
    arguments = parser.parse_args()
    sources = [source for source in (arguments.src, THIS_SOURCE) if source is not None]
    load = os.getloadavg()[0]
    found: dict[Path, list[list[Stage]]] = {source: [] for source in sources}
    with tempfile.TemporaryDirectory(prefix="discover-") as scratch:
        if arguments.images:
            files = sampled_images(arguments.images, arguments.n)
        else:
            files = generated_images(arguments.n)
        write_images(files, Path(scratch))
        for _ in range(arguments.rounds):
            for source in sources:
                found[source].append(
                    run(source.resolve(), Path(scratch), arguments.device, arguments.options)
                )
    rows = []
    for source, rounds in found.items():
        best = min(rounds, key=lambda stages: sum(stage.cpu_s for stage in stages))
        rows += [*render(best, f"commit {commit_of(source)}"), ""]
    notes = (
        f"Seed {SEED}; the fewest CPU seconds of {arguments.rounds} round(s), alternating commits; "
        f"load average at the start {load:.1f}."
    )
    write_table(rows[:-1], arguments.record, notes)


if __name__ == "__main__":
    main()
