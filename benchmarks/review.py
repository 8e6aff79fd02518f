"""How fast `shoal review` is on large runs, in a real browser: start, first view, frames while scrolling, actions.

    python benchmarks/review.py --images 100000 1000000 --out benchmarks/results/DATE_HARDWARE_review.md

Makes runs of drawn thumbnails, once, serves each as a person would, and drives Chromium over its own protocol.
"""

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Browser, Page, launched  # noqa: E402
from review_page import seen  # noqa: E402
from shoal.runs import Assignment, Category, Run  # noqa: E402

N_CATEGORIES = 200
N_DIMENSIONS = 64
N_ACTIONS = 30
N_ACTIONS_ON_ALL = 5
SECONDS = 8
STARTING_S = 3
"""Seconds that Chromium is given to start, in which it takes both cores; a curator has it open."""

SCROLL = """
new Promise((done) => {
  const grid = document.getElementById("grid"), times = [];
  let last = performance.now();
  const end = last + %d * 1000;
  const step = (now) => {
    times.push(now - last);
    last = now;
    grid.scrollTop += 90;
    if (grid.scrollTop + grid.clientHeight >= grid.scrollHeight - 1) grid.scrollTop = 0;
    if (now < end) requestAnimationFrame(step); else done(times.slice(1));
  };
  requestAnimationFrame(step);
})
"""


@dataclass(frozen=True)
class Settings:
    """None that matter."""

    epochs: int = 0


def drawn(n: int) -> Iterator[bytes]:
    """Thumbnails with a number and a color each; 2,000 of them take turns."""
    made = []
    for at in range(min(n, 2_000)):
        image = Image.new("RGB", (64, 64), tuple(int(40 + 17 * at * k) % 216 for k in (1, 3, 7)))
        ImageDraw.Draw(image).text((8, 24), str(at), fill="white")
        file = io.BytesIO()
        image.save(file, "WEBP", quality=80)
        made.append(file.getvalue())
    return (made[row % len(made)] for row in range(n))


def write_run(path: Path, n_images: int) -> Run:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N_CATEGORIES, n_images)
    n_known = N_CATEGORIES // 2
    names = [
        f"species {c:03d}" if c < n_known else f"novel-{c - n_known + 1:03d}"
        for c in range(N_CATEGORIES)
    ]
    scores = rng.random((n_images, 3))
    run = Run.create(path)
    run.start(Settings(), seed=0, device="cpu", command="shoal discover photos")
    run.write_assignments(
        Assignment(
            path=f"camera {row % 17}/2026/DSC_{row:07d}.jpg",
            label_given=names[c] if c < n_known and row % 3 == 0 else "",
            category_id=c,
            category=names[c],
            is_novel=c >= n_known,
            confidence=float(scores[row, 0]),
            outlier_score=float(scores[row, 1]),
            nearest_known=names[c % n_known],
            nearest_known_similarity=float(scores[row, 2]),
            second_category=names[(c + 1) % N_CATEGORIES],
        )
        for row, c in enumerate(ids.tolist())
    )
    sizes = np.bincount(ids, minlength=N_CATEGORIES)
    run.write_categories(
        Category(
            category_id=c,
            category=names[c],
            is_novel=c >= n_known,
            size=int(sizes[c]),
            n_labeled=0,
            confidence=0.5,
        )
        for c in range(N_CATEGORIES)
    )
    x = rng.normal(size=(N_CATEGORIES, N_DIMENSIONS))[ids] + rng.normal(
        size=(n_images, N_DIMENSIONS)
    )
    run.write_array("embeddings", (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    run.write_thumbnails(drawn(n_images))
    run.finish()
    return run


def acted(page: Page, key: str) -> float:
    """Milliseconds from a key to the answer, as the page measured it."""
    before = int(page.run("document.body.dataset.seq"))
    page.run("document.getElementById('grid').focus(), true")
    seen(page)
    page.key(key)
    page.wait(f"Number(document.body.dataset.seq) > {before} && document.body.dataset.took")
    return float(page.run("document.body.dataset.took"))


def busy_seconds(page: Page) -> float:
    """Processor seconds of the page's main thread so far, which other work on the machine does not change."""
    values = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
    return float(values["ThreadTime"] if "ThreadTime" in values else values["TaskDuration"])


def processor_seconds(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def act_on_all(page: Page) -> dict[str, float]:
    """Milliseconds of the median and the slowest action on every image at once, each with its undo."""
    times: dict[str, list[float]] = {}
    for _ in range(N_ACTIONS_ON_ALL):
        for name, key in (("confirm", "c"), ("reject", "x"), ("flag", "f")):
            page.key("a")
            times.setdefault(f"{name} all images at once", []).append(acted(page, key))
            times.setdefault("undo of all that", []).append(acted(page, "u"))
    ends = {"median": np.median, "slowest": max}
    return {
        f"{name}, {end} ms": float(of(found))
        for name, found in times.items()
        for end, of in ends.items()
    }


@contextmanager
def reviewed(run: Path) -> Iterator[tuple[int, str]]:
    """The command as a person starts it: the number of its process, and the address it prints."""
    command = [
        sys.executable,
        "-m",
        "shoal",
        "review",
        str(run),
        "--no-open",
        "--json",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())["url"]
        process.terminate()


def measure(browser: Browser, run: Path, n_images: int) -> dict[str, float]:
    began = time.perf_counter()
    with reviewed(run) as (pid, url):
        found = {"server ready, s": time.perf_counter() - began}
        found["server ready, processor s"] = processor_seconds(pid)
        with browser.open(url, width=1600, height=1000) as page:
            page.call("Performance.enable", timeDomain="threadTicks")
            page.wait("document.body.dataset.ready && document.querySelector('.tile img.there')")
            found["first view with thumbnails, s from the page's first request"] = (
                page.run("performance.now()") / 1000
            )
            found["first view with thumbnails, s from the command"] = time.perf_counter() - began
            first, *rejects = [acted(page, "x") for _ in range(N_ACTIONS)]
            found["reject while the page still loads, ms"] = first
            found |= {
                "reject, median ms": float(np.median(rejects)),
                "reject, slowest ms": max(rejects),
            }
            n_category = int(page.run("shoal.grid.rows.length"))
            found[f"confirm a category of {n_category:,}, ms"] = acted(page, "c")
            found["undo of that, ms"] = acted(page, "u")
            found["redo, ms"] = acted(page, "U")
            page.click('[data-view="all"]')
            page.wait(f"shoal.grid.rows.length > {n_images // 2}")
            busy = busy_seconds(page)
            frames = np.array(page.run(SCROLL % SECONDS))
            found["main thread busy per frame, ms"] = (
                1000 * (busy_seconds(page) - busy) / len(frames)
            )
            found["frames per second while scrolling all images"] = 1000 / frames.mean()
            found["frame, 95 % below ms"] = float(np.quantile(frames, 0.95))
            found["slowest frame, ms"] = float(frames.max())
            found["tiles drawn while scrolling"] = float(page.run("shoal.grid.drawn"))
            found |= act_on_all(page)
            assert not page.complaints(), page.complaints()[:3]
    return found


def record(columns: dict[int, dict[str, float]]) -> str:
    load = os.getloadavg()[0]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    names = list(dict.fromkeys(name for found in columns.values() for name in found))
    head = f"| | {' | '.join(f'{n:,} images' for n in columns)} |\n|---|{'---|' * len(columns)}\n"
    rows = "".join(
        f"| {name} | {' | '.join(f'{found[name]:,.1f}' if name in found else '–' for found in columns.values())} |\n"
        for name in names
    )
    return f"""# `shoal review` on large runs

{head}{rows}
Measured by `python benchmarks/review.py --images {" ".join(map(str, columns))}` at commit {commit.stdout.strip()}
on {os.cpu_count()} cores ({platform.machine()}), load {load:.1f} by other work, niceness {os.nice(0)}, in headless
Chromium without a GPU, 1600 x 1000 pixels. Thumbnails are drawn, 2,000 of them in turn; {N_CATEGORIES} categories,
embeddings of {N_DIMENSIONS} numbers. Scrolling moves 90 pixels a frame for {SECONDS} s. Of every action on all images
{N_ACTIONS_ON_ALL} are done. Chromium was started {STARTING_S} s before.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs="+", default=[100_000])
    parser.add_argument(
        "--runs", type=Path, default=Path(tempfile.gettempdir()) / "shoal-review-runs"
    )
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium; install it, or set CHROMIUM to its path")
    found = {}
    with launched(chromium) as browser:
        for n_images in chosen.images:
            run = chosen.runs / f"run{n_images}"
            if not run.is_dir():
                write_run(run, n_images)
            (run / "review.jsonl").unlink(missing_ok=True)
            time.sleep(STARTING_S)
            found[n_images] = measure(browser, run, n_images)
            print(json.dumps({n_images: found[n_images]}), flush=True)
    text = record(found)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
