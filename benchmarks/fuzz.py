"""Try to break it, from a seed: mutated files, runs killed at random moments, full disks. `make fuzz`.

Every input must be taken or refused in words (a `ShoalError`); every run that was killed or ran out of disk must be
resumed to the same bytes as one that was left alone. Prints a table of what was tried and what came of it, and ends
with 1 where anything else happened.

    python benchmarks/fuzz.py --seconds 60 --seed 0 --record benchmarks/results/FILE.md
"""

import argparse
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from shoal.data.demo import digits
from shoal.data.pixels.decoding import Unreadable, decode_file
from shoal.data.readers import read_collection, read_embeddings
from shoal.discovery.images import discover_images
from shoal.discovery.reporter import SILENT
from shoal.discovery.settings import DiscoverySettings, choose_settings
from shoal.errors import ShoalError
from shoal.runs import Run
from shoal.settings import dump_settings, load_settings

N_IMAGES = 24
HANGS_S = 60
TOKENS = (
    b"\0",
    b'"',
    b",",
    b"\n",
    b"\t",
    b"{",
    b"}",
    b"[",
    b"-1",
    b"nan",
    b"1e999",
    b"!!python/object:os.system",
    b"\xff\xfe",
)
TIMED = ("provenance.json", "metrics.jsonl", "train.log", "report.html")
"""Files that hold times."""


class Hang(Exception):
    """An input that took longer than any should."""


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Content with one to four faults: bytes changed, cut off, taken out, doubled or put in."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, n = rng.randrange(len(found) + 1), rng.choice((1, 2, 8, 64))
        fault = rng.randrange(6)
        if fault == 0 and found:
            for _ in range(n):
                found[rng.randrange(len(found))] = rng.randrange(256)
        elif fault == 1:
            del found[at:]
        elif fault == 2:
            del found[at : at + n]
        elif fault == 3:
            found[at:at] = found[at : at + n]
        elif fault == 4:
            found[at:at] = rng.choice(TOKENS)
        else:
            found[at : at + n] = bytes(len(found[at : at + n]))
    return bytes(found)


class Files:
    """Sound files of every kind, and what reads each; a mutated copy takes a file's place for one try."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.images = place / "images"
        self.images.mkdir()
        collection, _ = digits(0)
        for i in range(N_IMAGES):
            Image.fromarray(np.asarray(collection.source(i))).convert("RGB").save(self.images / f"{i:02d}.png")
        self.labels = [(f"{i:02d}.png", str(collection.labels[i] % 5)) for i in range(0, N_IMAGES, 2)]
        self.settings = choose_settings(train=True, epochs=2, input_size=32, n_clusters=6)
        rows = "".join(f"{name},{label}\n" for name, label in self.labels)
        (place / "labels.csv").write_text(f"path,label\n{rows}")
        (place / "labels.tsv").write_text(f"path\tlabel\n{rows}".replace(",", "\t"))
        (place / "labels.jsonl").write_text("".join(f'{{"path": "{n}", "label": "{c}"}}\n' for n, c in self.labels))
        (place / "config.yaml").write_text(dump_settings(self.settings))
        x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
        np.save(place / "x.npy", x)
        np.savez(place / "x.npz", X=x, paths=np.array([f"{i}.png" for i in range(12)]), y=np.arange(12) % 3)
        picture = Image.open(self.images / "00.png").resize((40, 30))
        for kind in ("jpg", "png", "webp", "gif", "bmp", "tif"):
            picture.save(place / f"picture.{kind}")

    def readers(self, run: Run) -> dict[str, tuple[list[Path], Callable[[Path], object]]]:
        """Kind -> sound files of it, and what takes one."""
        at = self.place
        parts = [file for file in run.path.iterdir() if file.suffix in (".json", ".csv", ".yaml", ".jsonl", ".npy")]
        return {
            "images": (sorted(at.glob("picture.*")), lambda file: decode_file(str(file), 32)),
            "tables": (sorted(at.glob("labels.*")), lambda file: read_collection(self.images, file)),
            "configs": ([at / "config.yaml"], lambda file: load_settings(DiscoverySettings, file)),
            "embeddings": ([at / "x.npy", at / "x.npz"], read_embeddings),
            "run folders": (sorted(parts), lambda file: read_run(file.parent)),
        }


def read_run(folder: Path) -> None:
    """Everything that a user reads of a run."""
    run = Run.open(folder)
    for name in ("assignments", "categories", "skipped", "n_clusters", "metrics", "config", "provenance"):
        getattr(run, name)
    for name in ("embeddings", "shifted", "tree"):
        np.asarray(run.array(name))
    run.json("estimate")


def try_input(source: Path, read: Callable[[Path], object], rng: random.Random, faults: list[str]) -> str:
    """Read a mutated copy in the place of a sound file: 'taken', 'refused' or 'traceback'."""
    sound = source.read_bytes()
    broken = mutate(sound, rng)
    source.write_bytes(broken)
    signal.alarm(HANGS_S)
    try:
        with redirect_stderr(io.StringIO()):
            read(source)
        return "taken"
    except (ShoalError, Unreadable):
        return "refused"
    except BaseException as error:
        faults.append(f"{source.name}: {''.join(traceback.format_exception(error)[-3:])}\n{broken[:300]!r}")
        return "traceback"
    finally:
        signal.alarm(0)
        source.write_bytes(sound)


def discover(files: Files, out: Path, *, resume: bool) -> None:
    """A discovery with training."""
    collection = read_collection(files.images, files.place / "labels.csv")
    discover_images(collection, out, files.settings, device="cpu", resume=resume, reporter=SILENT)


def fork(files: Files, out: Path, *, resume: bool, killed_after: float | None = None) -> int:
    """Run a discovery in a fork; its exit code, 3 where it was refused in words, below 0 where it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            discover(files, out, resume=resume)
            code = 0
        except ShoalError:
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def differences(run: Path, whole: Path) -> list[str]:
    """The files of two runs that are not the same bytes."""
    names = {file.relative_to(place) for place in (run, whole) for file in place.rglob("*") if file.is_file()}
    kept = sorted(str(name) for name in names if name.name not in TIMED)
    return [
        n
        for n in kept
        if not ((run / n).is_file() and (whole / n).is_file()) or (run / n).read_bytes() != (whole / n).read_bytes()
    ]


def try_kills(files: Files, whole: Path, lasts: float, rng: random.Random, faults: list[str]) -> Counter[str]:
    """Kill a run up to three times at random moments, resume it, and compare."""
    out, seen = files.place / "killed", Counter[str]()
    shutil.rmtree(out, ignore_errors=True)
    for _ in range(rng.randint(1, 3)):
        code = fork(files, out, resume=True, killed_after=rng.uniform(0, lasts))
        seen["killed" if code < 0 else "done before"] += 1
        if code > 0:
            faults.append(f"a killed run ended with {code}")
    code = fork(files, out, resume=True)
    lost = [f"exit code {code}"] if code else differences(out, whole)
    if lost:
        faults.append(f"resumed after kills: {', '.join(lost)}")
    return seen + Counter({"lost" if lost else "same bytes": 1})


def try_full_disk(files: Files, whole: Path, rng: random.Random, faults: list[str]) -> Counter[str]:
    """Run on a file system that is too small, make it larger, resume, and compare."""
    disk = files.place / "disk"
    disk.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={rng.randint(16, 30_000)}k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return Counter({"skipped: no small file system can be mounted here": 1})
    try:
        code = fork(files, disk / "run", resume=False)
        seen = Counter({"refused" if code == 3 else "fitted" if code == 0 else "traceback": 1})
        subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
        again = fork(files, disk / "run", resume=True)
        lost = [f"exit code {again}"] if again else differences(disk / "run", whole)
        if lost or code not in (0, 3):
            faults.append(f"full disk: first {code}, then {', '.join(lost) or 'the same bytes'}")
        return seen + Counter({"lost" if lost else "same bytes": 1})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fuzz(place: Path, seconds: float, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Try as much as there is time for: a half of it inputs, the rest kills and full disks."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its threads on ARM do not survive a fork
    os.environ |= {"SHOAL_CACHE": str(place / "cache"), "SHOAL_ENGINE": "torch"}
    rng, files, faults = random.Random(seed), Files(place), list[str]()
    seen: dict[str, Counter[str]] = {}
    # Without training, because autograd starts threads; everything that is imported late is imported here.
    frozen = discover_images(
        read_collection(files.images, files.place / "labels.csv"), place / "frozen-run",
        choose_settings(train=False, input_size=32, n_clusters=6), device="cpu", reporter=SILENT,
    )  # fmt: skip
    started = time.monotonic()
    if fork(files, place / "whole", resume=False):
        return seen, ["a run that nobody disturbs fails"]
    lasts = time.monotonic() - started
    readers = files.readers(Run(frozen.path))
    began = time.monotonic()  # set-up does not count: on a busy machine it takes longer than a minute
    while time.monotonic() - began < seconds / 2:
        for kind, (sound, read) in readers.items():
            seen.setdefault(kind, Counter())[try_input(rng.choice(sound), read, rng, faults)] += 1
    rounds = 0
    while time.monotonic() - began < seconds or not rounds:
        seen["kills"] = seen.get("kills", Counter()) + try_kills(files, place / "whole", lasts, rng, faults)
        if rounds % 3 == 0:
            full = try_full_disk(files, place / "whole", rng, faults)
            seen["full disks"] = seen.get("full disks", Counter()) + full
        rounds += 1
    return seen, faults


def to_table(seen: dict[str, Counter[str]]) -> str:
    """What was tried and what came of it, as a Markdown table."""
    lines = ["| what | tried | what came of it |", "|---|---|---|"]
    for kind, counts in seen.items():
        n_tried = counts["killed"] + counts["done before"] if kind == "kills" else sum(counts.values())
        if kind == "full disks":
            n_tried -= counts["same bytes"] + counts["lost"]
        lines.append(f"| {kind} | {n_tried:,} | {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))} |")
    return "\n".join(lines)


def main() -> int:
    """Parse, fuzz, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="Markdown file to write the table to")
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda number, frame: (_ for _ in ()).throw(Hang()))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        seen, faults = fuzz(Path(place), asked.seconds, asked.seed)
    text = f"{to_table(seen)}\n\nseed {asked.seed}, {asked.seconds:.0f} s, {len(faults)} faults\n"
    print(text)
    for fault in faults[:20]:
        print(f"fault: {fault}", file=sys.stderr)
    if asked.record:
        asked.record.write_text(text, encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
