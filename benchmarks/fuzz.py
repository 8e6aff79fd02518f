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

# Rounds of kills per full disk
DISK_EVERY = 3

# Kind of test -> how often each outcome occurred
Outcomes = dict[str, Counter[str]]


@dataclass(frozen=True)
class Share:
    """The work of one process: numbers of inputs and kills, or seconds."""

    folder: Path
    # A finished run without training
    finished: Path
    seed: str
    inputs: int | None
    kills: int | None
    # Half of them are for inputs, half for runs
    seconds: float | None


def fuzz(share: Share) -> tuple[Outcomes, list[str]]:
    """Run a share of the tests in a folder; return the outcomes and the failures."""
    files = Files(share.folder / "files", make_settings())
    failures = list[str]()
    rng = random.Random(share.seed)
    shutil.copytree(share.finished, share.folder / "finished")  # its files are mutated in place
    outcomes = _try_inputs(share, files, rng, failures)
    return outcomes | _try_runs(share, files, rng, failures), failures


def _try_inputs(share: Share, files: Files, rng: random.Random, failures: list[str]) -> Outcomes:
    readers = files.readers(share.folder / "finished")
    began = time.monotonic()
    n_tried = 0
    outcomes: Outcomes = {kind: Counter() for kind in readers}
    while _has_more(share.inputs, n_tried, share.seconds and share.seconds / 2, began):
        for kind, (valid, read) in readers.items():
            outcomes[kind][try_input(rng.choice(valid), read, rng, failures)] += 1
            n_tried += 1
    return outcomes


def _try_runs(share: Share, files: Files, rng: random.Random, failures: list[str]) -> Outcomes:
    began = time.monotonic()
    rounds = 0
    whole = share.folder / "whole"
    outcomes: Outcomes = {"kills": Counter(), "full disks": Counter()}
    if code := fork(files, whole):
        failures.append(f"an undisturbed run exits with {code}")
        return outcomes
    max_delay = time.monotonic() - began
    while _has_more(
        share.kills, outcomes["kills"]["killed"], share.seconds and share.seconds / 2, began
    ):
        tried = try_kills(files, whole, max_delay, rng, failures)
        # Adapt so that about seven in ten kills come before the end of a run, at any moment of it.
        max_delay *= 1.1 ** tried["killed"] * 0.8 ** tried["finished before"]
        outcomes["kills"].update(tried)
        if rounds % DISK_EVERY == 0:
            outcomes["full disks"].update(try_full_disk(files, whole, rng, failures))
        rounds += 1
    return outcomes


def _has_more(wanted: int | None, done: int, seconds: float | None, began: float) -> bool:
    """Return whether there are tests left; every requested kind runs at least once."""
    if wanted is not None:
        return done < wanted
    return not done or time.monotonic() - began < (seconds or 0)


def fuzz_together(
    folder: Path, jobs: int, seed: int, inputs: int | None, kills: int | None, seconds: float | None
) -> tuple[Outcomes, list[str]]:
    """Share the work among processes, each with its own seed."""
    if error := prepare(Files(folder / "files", make_settings()), folder):
        return {}, [error]
    n_inputs, n_kills = ((None if n is None else -(-n // jobs)) for n in (inputs, kills))
    shares = [
        Share(folder / str(job), folder / "finished", f"{seed}-{job}", n_inputs, n_kills, seconds)
        for job in range(jobs)
    ]
    # The workers fork further, which is safe only in processes that have computed nothing yet.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        results = list(pool.map(fuzz, shares))
    total: Outcomes = {}
    for outcomes, _ in results:
        for kind, counts in outcomes.items():
            total.setdefault(kind, Counter()).update(counts)
    return total, [failure for _, failures in results for failure in failures]


def to_table(outcomes: Outcomes) -> list[str]:
    """Return the rows of a table of tests and outcomes."""
    lines = ["| test | tried | outcomes |", "|---|---|---|"]
    for kind, counts in outcomes.items():
        n_tried = sum(counts.values())
        if kind in ("kills", "full disks"):  # each also counts the comparison after a resume
            n_tried -= counts["same bytes"] + counts["lost"]
        counted = ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items()))
        lines.append(f"| {kind} | {n_tried:,} | {counted} |")
    return lines


def _read_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="total time; 60 by default")
    parser.add_argument("--inputs", type=int, help="number of mutated inputs, instead of a time")
    parser.add_argument("--kills", type=int, help="number of kills, instead of a time")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="Markdown file to write the table to")
    arguments = parser.parse_args()
    if arguments.inputs is None and arguments.kills is None:
        arguments.seconds = arguments.seconds or 60.0
    elif arguments.seconds is not None:
        parser.error("give a time, or numbers of inputs and kills")
    else:
        arguments.inputs = arguments.inputs or 0
        arguments.kills = arguments.kills or 0
    return arguments


def main() -> int:
    """Run the fuzzer and print its table."""
    arguments = _read_command()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes, failures = fuzz_together(
            Path(folder),
            arguments.jobs,
            arguments.seed,
            arguments.inputs,
            arguments.kills,
            arguments.seconds,
        )
    seconds = time.monotonic() - began
    note = f"{os.cpu_count()} processors; {seconds:.0f} s, {len(failures)} failures"
    write_table(to_table(outcomes), arguments.record, note)
    for failure in failures[:20]:
        print(f"failure: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
