"""Runs that are killed, in a program started by test_killed_runs.py, so that torch is imported only
once.

Each run is a fork of this process, which has trained nothing yet. A run kills itself with SIGKILL,
so it cannot clean up; a second one then resumes it. Prints a JSON object that maps each moment to
both exit codes.
"""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import BaseFileLock

from photo_runs import discover_images
from shoal.data.readers import read_collection
from shoal.discovery import api as discovery
from shoal.discovery import results, run_job
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained.evaluation import Choice
from shoal.runs import LOCK, Run
from shoal.training import loop


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(bar, at):
    """Die when the progress bar `bar` reaches `at`, or when it starts if `at` is None."""

    @contextmanager
    def show(what, unit, after):
        if what == bar and at is None:
            die()
        yield lambda done, total: die() if what == bar and at is not None and done >= at else None

    return Reporter(show=show)


def die_before_metrics():
    """Die between two epochs: the new checkpoint is written, metrics.jsonl is not."""
    loop.write_text = die
    return Reporter()


def die_in_tables(of_frozen):
    """Die between writing assignments.csv and categories.csv of the frozen result or of the run."""
    write = Run.write_categories
    Run.write_categories = lambda run, rows: (
        die() if (run.path.name == "frozen") == of_frozen else write(run, rows)
    )
    return Reporter()


def die_holding():
    """Die after the last step, with the run folder still locked."""
    release = BaseFileLock.release

    def release_or_die(held, force=False):
        file = Path(held.lock_file)
        if file.name == LOCK and held.lock_counter == 1:
            die()
        release(held, force)

    BaseFileLock.release = release_or_die
    return Reporter()


def die_at(module, name):
    """Die when a function is called."""
    setattr(module, name, die)
    return Reporter()


MOMENTS = {
    "at the start": lambda: die_at(run_job, "_embed"),
    "decoding": lambda: die_in("decoding images", 30),
    "frozen embedding": lambda: die_in("embedding images", 1),
    "thumbnails": lambda: die_in("making thumbnails", None),
    "first tables": lambda: die_in_tables(of_frozen=True),
    "first report": lambda: die_at(results, "write_report"),
    "before training": lambda: die_in("preparing views", None),
    "trunk": lambda: die_in("preparing views", 1),
    "epoch 1": lambda: die_in("training, first epoch", 1),
    "between epochs": die_before_metrics,
    "epoch 2": lambda: die_in("training", 4),
    "after training": lambda: die_at(discovery, "write_results"),
    "writing tables": lambda: die_in_tables(of_frozen=False),
    "holding the lock": die_holding,
    "finished": lambda: die_at(Run, "drop_checkpoints"),
}


def discover(folder, labels, config, out, reporter, **options):
    settings = choose_settings(config=config, **options.pop("settings", {}))
    collection = read_collection(folder, labels)
    return discover_images(collection, out, settings, reporter=reporter, **options)


def run_forked(arguments, cache, make_reporter, resume):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.environ["SHOAL_CACHE"] = str(cache)
    discover(*arguments, make_reporter(), resume=resume)
    os._exit(0)


def main(folder, labels, config, runs, *moments):
    torch.set_num_threads(1)
    Choice.is_significant = (
        True  # so few labels cannot show a significant gain, but the trained result must be used
    )
    torch.backends.mkldnn.set_flags(
        False
    )  # on ARM its threads do not survive a fork, and children would wait for them
    runs = Path(runs)
    os.environ["SHOAL_CACHE"] = str(runs / "cache")
    given = folder, labels, config
    # This run performs all late imports. It does not train, because autograd starts threads.
    discover(*given, runs / "warm", Reporter(), settings={"train": False})
    ends = {"whole": [run_forked((*given, runs / "whole"), runs / "cache", Reporter, False)]}
    for moment in moments:
        arguments = (*given, runs / moment)
        # Results cached by another run would skip the step in which this one is killed.
        cache = runs / f"cache of {moment}"
        ends[moment] = [
            run_forked(arguments, cache, MOMENTS[moment], False),
            run_forked(arguments, cache, Reporter, True),
        ]
    print(json.dumps(ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
