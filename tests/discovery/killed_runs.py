"""Runs that are killed, started by test_killed_runs.py as a program: one import of torch serves all
of them.

Each run is a fork of this process, which has trained nothing yet. A run that is to die kills itself
with SIGKILL, so nothing of it can tidy up; then another one resumes. Prints a JSON object: moment
-> how the two ended.
"""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import BaseFileLock

from shoal.data.readers import read_collection
from shoal.discovery import answers, run_job
from shoal.discovery import pipeline as discovery
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.reporter import Reporter
from shoal.discovery.trained.choice import Choice
from shoal.runs import LOCK, Run
from shoal.training import checkpoint


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(bar, at):
    """Die when the progress of something named `bar` reaches `at`, or when it begins."""

    @contextmanager
    def show(what, outlook):
        if what == bar and at is None:
            die()
        yield lambda done, total: die() if what == bar and at is not None and done >= at else None

    return Reporter(show=show)


def die_before_metrics():
    """Die between two epochs: the checkpoint is the new one, metrics.jsonl is not written yet."""
    checkpoint.write_text = die
    return Reporter()


def die_in_tables(of_first):
    """Die when assignments.csv is written and categories.csv is not: of the first answer, or of the
    one that stands."""
    write = Run.write_categories
    Run.write_categories = lambda run, rows: (
        die() if (run.path.name == "frozen") == of_first else write(run, rows)
    )
    return Reporter()


def die_holding():
    """Die when everything is done but the lock on the run folder is still held."""
    release = BaseFileLock.release

    def release_or_die(held, force=False):
        file = Path(held.lock_file)
        if file.name == LOCK and file.parent.name != "frozen" and held.lock_counter == 1:
            die()
        release(held, force)

    BaseFileLock.release = release_or_die
    return Reporter()


def die_at(module, name):
    """Die where a function would be called."""
    setattr(module, name, die)
    return Reporter()


MOMENTS = {
    "at the start": lambda: die_at(run_job, "embed_images"),
    "decoding": lambda: die_in("decoding images", 30),
    "frozen embedding": lambda: die_in("embedding images", 1),
    "thumbnails": lambda: die_in("making thumbnails", None),
    "first tables": lambda: die_in_tables(of_first=True),
    "first report": lambda: die_at(answers, "write_report"),
    "before training": lambda: die_in("preparing views", None),
    "trunk": lambda: die_in("preparing views", 1),
    "epoch 1": lambda: die_in("training", 1),
    "between epochs": die_before_metrics,
    "epoch 2": lambda: die_in("training", 4),
    "after training": lambda: die_at(discovery, "write_answers"),
    "writing tables": lambda: die_in_tables(of_first=False),
    "holding the lock": die_holding,
    "finished": lambda: die_at(Run, "drop_checkpoints"),
}


def discover(folder, labels, config, out, reporter, **options):
    settings = choose_settings(config=config, **options.pop("settings", {}))
    return discovery.discover_images(
        read_collection(folder, labels), out, settings, device="cpu", reporter=reporter, **options
    )


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
        True  # so few labels show nothing; training with all labels is to follow
    )
    torch.backends.mkldnn.set_flags(
        False
    )  # its threads on ARM do not survive a fork, and children wait for them
    runs = Path(runs)
    os.environ["SHOAL_CACHE"] = str(runs / "cache")
    given = folder, labels, config
    # Everything that is imported late is imported here. Without training, because autograd starts
    # threads.
    discover(*given, runs / "warm", Reporter(), settings={"train": False})
    ends = {"whole": [run_forked((*given, runs / "whole"), runs / "cache", Reporter, False)]}
    for moment in moments:
        arguments = (*given, runs / moment)
        cache = runs / ("new-cache" if moment == "decoding" else "cache")
        ends[moment] = [
            run_forked(arguments, cache, MOMENTS[moment], False),
            run_forked(arguments, cache, Reporter, True),
        ]
    print(json.dumps(ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
