"""Runs for `fuzz.py` that are killed or run out of disk, resumed, and compared byte by byte.

Each run is a fork of a process that has imported everything and computed nothing, so that it takes
no longer than its computations. The encoder is a small network with weights from a seed.
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
from types import SimpleNamespace

import torch
from torch import nn

from fuzz_inputs import Files
from shoal.data.readers import read_collection
from shoal.discovery.api import DiscoveryJob
from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings
from shoal.discovery.reporter import SILENT
from shoal.discovery.run_job import run_job
from shoal.encoders import catalog
from shoal.encoders.vision import InputFormat, Parts
from shoal.errors import ShoalError
from shoal.runs import Run

ENCODER = "fuzz/small"
SIZE = 16
REFUSED = 3

# Files that differ between runs, because they contain times
FILES_WITH_TIMES = ("provenance.json", "metrics.jsonl", "train.log", "report.html")


def make_settings() -> DiscoverySettings:
    """Return settings of a small discovery with all steps of `discover` and a small network."""
    changes = {"training.batch_size": 8, "head.width": 16, "head.dim": 8, "head.bottleneck": 4}
    changes |= {"inference.shift.n_neighbors": 3, "n_tail_blocks": 1}
    changes |= {"training.views.pool": 2, "training.lr": 0.005}
    return choose_settings(
        encoder=ENCODER, epochs=2, n_clusters=10, pixel_size=SIZE, hidden_share=0.3, changes=changes
    )


def make_small() -> Parts:
    """Return a convolution and two blocks, the same on every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = nn.Sequential(nn.Conv2d(3, 12, 4, stride=4), nn.GELU())
        blocks = [nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.GELU()) for _ in range(2)]
    finish = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Parts(stem=stem, blocks=blocks, finish=finish, is_finish_trained=False, feature_dim=12)


def prepare(files: Files, place: Path) -> str | None:
    """Prepare for forks, and finish a run without training; return an error, or None."""
    torch.set_num_threads(1)
    if platform.machine() in ("aarch64", "arm64"):
        # On ARM, oneDNN starts threads at import, which do not survive a fork.
        torch.backends.mkldnn.set_flags(False)
    os.environ |= {"SHOAL_ENGINE": "torch"}
    input_format = InputFormat(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    catalog._other_source = lambda name: (name, None)
    catalog.hub.load_model = lambda *_, **__: SimpleNamespace(config=None)
    catalog.hub.read_input_format = lambda *_, **__: input_format
    catalog.split_model = lambda *_: make_small()
    code = fork(files, place / "warm", listing=place / "modules")
    code = code or fork(files, place / "finished", settings=replace(files.settings, train=False))
    if code:
        return f"an undisturbed run exits with {code}"
    for name in (place / "modules").read_text().split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # created by a run, or optional
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
        job = DiscoveryJob(
            collection=read_collection(files.images, files.table),
            settings=settings,
            run=Run(out),
            device=torch.device("cpu"),
            resume=resume,
            reporter=SILENT,
        )
        run_job(job)
        if listing is not None:
            listing.write_text("\n".join(sorted(sys.modules)))
    except ShoalError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def differences(run: Path, whole: Path) -> list[str]:
    """Return the files of two runs whose bytes differ."""
    names = {
        file.relative_to(place)
        for place in (run, whole)
        for file in place.rglob("*")
        if file.is_file()
    }
    different = []
    for name in sorted(str(name) for name in names if name.name not in FILES_WITH_TIMES):
        is_in_both = (run / name).is_file() and (whole / name).is_file()
        if not is_in_both or (run / name).read_bytes() != (whole / name).read_bytes():
            different.append(name)
    return different


def try_kills(
    files: Files, whole: Path, max_delay: float, rng: random.Random, failures: list[str]
) -> Counter[str]:
    """Kill a run up to three times at random moments, resume it, and compare it with `whole`."""
    out = whole.parent / "killed"
    outcomes = Counter[str]()
    for old in (out, Path(f"{out}-cache")):  # also the cache, so that decoding can be killed
        shutil.rmtree(old, ignore_errors=True)
    for _ in range(rng.randint(1, 3)):
        code = fork(files, out, resume=True, killed_after=rng.uniform(0, max_delay))
        outcomes["killed" if code < 0 else "finished before"] += 1
        if code > 0:
            failures.append(f"a run that was to be killed exited with {code}")
        if code >= 0:
            break
    code = fork(files, out, resume=True)
    lost = [f"exit code {code}"] if code else differences(out, whole)
    if lost:
        failures.append(f"resumed after kills: {', '.join(lost)}")
    return outcomes + Counter({"lost" if lost else "same bytes": 1})


def try_full_disk(
    files: Files, whole: Path, rng: random.Random, failures: list[str]
) -> Counter[str]:
    """Run on a file system that may be too small, enlarge it, resume, and compare with `whole`."""
    disk = whole.parent / "disk"
    disk.mkdir(exist_ok=True)
    needed = sum(file.stat().st_size for file in whole.rglob("*")) // 1024
    size = f"size={rng.randint(16, 16 + 2 * needed)}k"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return Counter({"skipped: no small file system can be mounted here": 1})
    try:
        code = fork(files, disk / "run")
        outcomes = Counter([{0: "fitted", REFUSED: "refused"}.get(code, "traceback")])
        subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
        resumed = fork(files, disk / "run", resume=True)
        lost = [f"exit code {resumed}"] if resumed else differences(disk / "run", whole)
        if lost or code not in (0, REFUSED):
            failures.append(f"full disk: first {code}, then {', '.join(lost) or 'the same bytes'}")
        return outcomes + Counter({"lost" if lost else "same bytes": 1})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
