"""Fuzz from a seed: mutated files, runs killed at random moments, full disks (`make fuzz`).

Every input must be read or refused with a `ShoalError`; every run that was killed or ran out of
disk must resume to the same bytes as an undisturbed one. Prints a table of what was tried, and
exits with 1 if anything else happened.

    python benchmarks/fuzz.py --seconds 60 --seed 0
    python benchmarks/fuzz.py --inputs 10000 --kills 200 --jobs 16 --record FILE.md
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz_inputs import Files, try_input
from fuzz_runs import fork, make_settings, prepare, try_full_disk, try_kills
from records import write_table

DISK_EVERY = 3
"""Rounds of kills for each full disk."""

Seen = dict[str, Counter[str]]
"""Kind of try -> what came of it, and how often."""


@dataclass(frozen=True)
class Share:
    """What one process is to do: numbers of inputs and kills, or seconds."""

    place: Path
    finished: Path
    """A finished run without training."""
    seed: str
    inputs: int | None
    kills: int | None
    seconds: float | None
    """A half of them for inputs, the rest for runs."""


def fuzz(share: Share) -> tuple[Seen, list[str]]:
    """Try a share in a folder of its own; what was seen, and what must not be."""
    files = Files(share.place / "files", make_settings())
    faults = list[str]()
    rng = random.Random(share.seed)
    shutil.copytree(
        share.finished, share.place / "finished"
    )  # its files are mutated in their place
    seen = _try_inputs(share, files, rng, faults)
    return seen | _try_runs(share, files, rng, faults), faults


def _try_inputs(share: Share, files: Files, rng: random.Random, faults: list[str]) -> Seen:
    readers = files.readers(share.place / "finished")
    began = time.monotonic()
    n_tried = 0
    seen: Seen = {kind: Counter() for kind in readers}
    while _goes_on(share.inputs, n_tried, share.seconds and share.seconds / 2, began):
        for kind, (sound, read) in readers.items():
            seen[kind][try_input(rng.choice(sound), read, rng, faults)] += 1
            n_tried += 1
    return seen


def _try_runs(share: Share, files: Files, rng: random.Random, faults: list[str]) -> Seen:
    began = time.monotonic()
    rounds = 0
    whole = share.place / "whole"
    seen: Seen = {"kills": Counter(), "full disks": Counter()}
    if code := fork(files, whole):
        faults.append(f"a run that nobody disturbs ends with {code}")
        return seen
    lasts = time.monotonic() - began
    while _goes_on(
        share.kills, seen["kills"]["killed"], share.seconds and share.seconds / 2, began
    ):
        tried = try_kills(files, whole, lasts, rng, faults)
        # About seven in ten kills come before the end, so that they come at every moment of a run.
        lasts *= 1.1 ** tried["killed"] * 0.8 ** tried["done before"]
        seen["kills"].update(tried)
        if rounds % DISK_EVERY == 0:
            seen["full disks"].update(try_full_disk(files, whole, rng, faults))
        rounds += 1
    return seen


def _goes_on(wanted: int | None, done: int, seconds: float | None, began: float) -> bool:
    """Whether there is more to try; there is at least one try of everything that is wanted."""
    if wanted is not None:
        return done < wanted
    return not done or time.monotonic() - began < (seconds or 0)


def fuzz_together(
    place: Path, jobs: int, seed: int, inputs: int | None, kills: int | None, seconds: float | None
) -> tuple[Seen, list[str]]:
    """Share the work among processes; each draws from a seed of its own."""
    if wrong := prepare(Files(place / "files", make_settings()), place):
        return {}, [wrong]
    n_inputs, n_kills = ((None if n is None else -(-n // jobs)) for n in (inputs, kills))
    shares = [
        Share(place / str(job), place / "finished", f"{seed}-{job}", n_inputs, n_kills, seconds)
        for job in range(jobs)
    ]
    # Forks of a process that has computed nothing: they fork in turn.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        found = list(pool.map(fuzz, shares))
    seen: Seen = {}
    for one, _ in found:
        for kind, counts in one.items():
            seen.setdefault(kind, Counter()).update(counts)
    return seen, [fault for _, faults in found for fault in faults]


def to_table(seen: Seen) -> list[str]:
    """Return the rows of a table of what was tried and what came of it."""
    lines = ["| what | tried | what came of it |", "|---|---|---|"]
    for kind, counts in seen.items():
        n_tried = (
            counts["killed"] + counts["done before"] if kind == "kills" else sum(counts.values())
        )
        if kind == "full disks":
            n_tried -= counts["same bytes"] + counts["lost"]
        outcomes = ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items()))
        lines.append(f"| {kind} | {n_tried:,} | {outcomes} |")
    return lines


def _read_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="for all of it; 60 where nothing is said")
    parser.add_argument("--inputs", type=int, help="mutated inputs to try, instead of a time")
    parser.add_argument("--kills", type=int, help="kills to do, instead of a time")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="Markdown file to write the table to")
    asked = parser.parse_args()
    if asked.inputs is None and asked.kills is None:
        asked.seconds = asked.seconds or 60.0
    elif asked.seconds is not None:
        parser.error("give a time, or numbers of inputs and kills")
    else:
        asked.inputs = asked.inputs or 0
        asked.kills = asked.kills or 0
    return asked


def main() -> int:
    """Parse, fuzz, print."""
    asked = _read_command()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        seen, faults = fuzz_together(
            Path(place), asked.jobs, asked.seed, asked.inputs, asked.kills, asked.seconds
        )
    took = f"{os.cpu_count()} processors; {time.monotonic() - began:.0f} s, {len(faults)} faults"
    write_table(to_table(seen), asked.record, took)
    for fault in faults[:20]:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
