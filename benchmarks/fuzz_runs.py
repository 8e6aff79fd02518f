"""Runs for `fuzz.py` that are killed or run out of disk, resumed, and compared byte by byte.

Each run is a fork of a process that has imported everything and computed nothing, so that it lasts
as long as its own work. The encoder is a small network with weights from a seed.
"""

import importlib
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fuzz_inputs import Files
from shoal.data.readers import read_collection
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.pipeline import discover_images
from shoal.discovery.reporter import SILENT
from shoal.encoders import catalog
from shoal.encoders.vision import InputFormat, Parts
from shoal.errors import ShoalError

ENCODER = "fuzz/small"
SIZE = 16
REFUSED = 3
TIMED = ("provenance.json", "metrics.jsonl", "train.log", "report.html")
"""Files that hold times."""


def make_settings() -> DiscoverySettings:
    """Settings of a small discovery: everything that `discover` does, with a small network."""
    changes = {"training.batch_size": 8, "head.width": 16, "head.dim": 8, "head.bottleneck": 4}
    changes |= {"inference.shift.n_neighbors": 3, "n_tail_blocks": 1}
    changes |= {"training.views.pool": 2, "training.lr": 0.005}
    return choose_settings(
        encoder=ENCODER, epochs=2, n_clusters=10, pixel_size=SIZE, hidden_share=0.3, changes=changes
    )


def load_small(name: str) -> tuple[Parts, InputFormat]:
    """A convolution and two blocks, the same on every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = nn.Sequential(nn.Conv2d(3, 12, 4, stride=4), nn.GELU())
        blocks = [nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.GELU()) for _ in range(2)]
    finish = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts = Parts(stem=stem, blocks=blocks, finish=finish, is_finish_trained=False, feature_dim=12)
    return parts, InputFormat(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def prepare(files: Files, place: Path) -> str | None:
    """Prepare for forks, and finish a run without training; return what is wrong, or None."""
    torch.set_num_threads(1)
    if platform.machine() in ("aarch64", "arm64"):
        # Its threads start with the import there, and do not survive a fork.
        torch.backends.mkldnn.set_flags(False)
    os.environ |= {"SHOAL_ENGINE": "torch"}
    catalog._load_other = load_small
    catalog.split_model = lambda parts, size: parts  # it is in parts already
    code = fork(files, place / "warm", listing=place / "modules")
    code = code or fork(files, place / "finished", settings=replace(files.settings, train=False))
    if code:
        return f"a run that nobody disturbs ends with {code}"
    for name in (place / "modules").read_text().split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a run has made it up, or tried it and can do without
    return None


def fork(
    files: Files,
    out: Path,
    *,
    resume: bool = False,
    killed_after: float | None = None,
    settings: DiscoverySettings | None = None,
    listing: Path | None = None,
) -> int:
    """Run a discovery in a fork; return its exit code: 3 if refused, below 0 if killed.

    `listing` is a file for the names of all modules that it has imported.
    """
    child = os.fork()
    if child == 0:
        os._exit(_discover(files, out, settings or files.settings, resume, listing))
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _discover(
    files: Files, out: Path, settings: DiscoverySettings, resume: bool, listing: Path | None
) -> int:
    os.environ["SHOAL_CACHE"] = f"{out}-cache"
    try:
        collection = read_collection(files.images, files.table)
        discover_images(collection, out, settings, device="cpu", resume=resume, reporter=SILENT)
        if listing is not None:
            listing.write_text("\n".join(sorted(sys.modules)))
    except ShoalError:
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def differences(run: Path, whole: Path) -> list[str]:
    """The files of two runs that are not the same bytes."""
    names = {
        file.relative_to(place)
        for place in (run, whole)
        for file in place.rglob("*")
        if file.is_file()
    }
    kept = sorted(str(name) for name in names if name.name not in TIMED)
    return [
        n
        for n in kept
        if not ((run / n).is_file() and (whole / n).is_file())
        or (run / n).read_bytes() != (whole / n).read_bytes()
    ]


def try_kills(
    files: Files, whole: Path, lasts: float, rng: random.Random, faults: list[str]
) -> Counter[str]:
    """Kill a run up to three times at random moments, resume it, and compare."""
    out = whole.parent / "killed"
    seen = Counter[str]()
    for old in (out, Path(f"{out}-cache")):  # the pixels too, so that decoding can be killed
        shutil.rmtree(old, ignore_errors=True)
    for _ in range(rng.randint(1, 3)):
        code = fork(files, out, resume=True, killed_after=rng.uniform(0, lasts))
        seen["killed" if code < 0 else "done before"] += 1
        if code > 0:
            faults.append(f"a run that was to be killed ended with {code}")
        if code >= 0:
            break
    code = fork(files, out, resume=True)
    lost = [f"exit code {code}"] if code else differences(out, whole)
    if lost:
        faults.append(f"resumed after kills: {', '.join(lost)}")
    return seen + Counter({"lost" if lost else "same bytes": 1})


def try_full_disk(files: Files, whole: Path, rng: random.Random, faults: list[str]) -> Counter[str]:
    """Run on a file system that is too small, make it larger, resume, and compare."""
    disk = whole.parent / "disk"
    disk.mkdir(exist_ok=True)
    needed = sum(file.stat().st_size for file in whole.rglob("*")) // 1024
    size = f"size={rng.randint(16, 16 + 2 * needed)}k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return Counter({"skipped: no small file system can be mounted here": 1})
    try:
        code = fork(files, disk / "run")
        seen = Counter([{0: "fitted", REFUSED: "refused"}.get(code, "traceback")])
        subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
        again = fork(files, disk / "run", resume=True)
        lost = [f"exit code {again}"] if again else differences(disk / "run", whole)
        if lost or code not in (0, REFUSED):
            faults.append(f"full disk: first {code}, then {', '.join(lost) or 'the same bytes'}")
        return seen + Counter({"lost" if lost else "same bytes": 1})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
