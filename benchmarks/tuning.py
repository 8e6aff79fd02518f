"""Choosing settings by given labels alone: some known categories are treated as novel, and judged on.

    PYTHONPATH=src python benchmarks/tuning.py --data DATA --trials benchmarks/trials_tail.yaml --out runs/tuning
    PYTHONPATH=src python benchmarks/tuning.py --rehearse --trials benchmarks/trials_tail.yaml --out runs/rehearsal

A third of the known categories of CUB lose their labels, as do a fifth of the labeled images of the others. A method is
trained on the whole collection with the labels that are left, and judged on the images that lost theirs, with one
matching at the true K: accuracy on known and on novel categories, as in the benchmark, without one hidden label of it.
The file of trials is a list of {method: cms, loss.temperature: 0.1, …}; what is not named is the default recipe's, and
a list of values, {n_tail_blocks: [1, 3, 5]}, is a trial for each. Every method must have as many configurations as the
others (but for --uneven), or the best of one would be the best of more draws. The last snapshot is judged. A trial that
names training.snapshot sets a fifth of the labels left aside from the loss, as `shoal reproduce` does, so that 'best',
chosen by these with K estimated, and 'last' can be compared.

A small network leaves a large GPU waiting for the next kernel, so --workers processes share it, and in --shared the
decoded images and the trunk's tokens, as those of accuracy.py do. Finished trials are kept in --out and not run again.

table.md in --out has a row for each configuration, mean and standard error over seeds, and what is chosen for each
method: the configuration with the best mean, or one with a shallower tail that is within one standard error of it.
--rehearse runs all of it on a CPU in minutes, with drawings and a tiny network in place of birds and EfficientNet.
"""

import argparse
import hashlib
import itertools
import json
import queue
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import yaml

from rehearsal import make_stand_in
from shoal.arrays import UNLABELED
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.splits import hold_out_validation
from shoal.device import choose_device
from shoal.encoders.catalog import load_encoder
from shoal.errors import ShoalError, UsageError
from shoal.files import make_folder, write_text
from shoal.methods.cms import CmsSettings
from shoal.methods.cms import cluster as shift_and_cut
from shoal.methods.registry import get_method, load_recipe
from shoal.methods.setting_changes import change_settings
from shoal.methods.task import Task
from shoal.reproduce.loaded_dataset import LoadedDataset
from tuning_table import Trial, configuration_of, table

NOVEL_SHARE = 1 / 3
HIDDEN_SHARE = 0.2
VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class Taken:
    """Labels left to the method, and those taken from it."""

    labels: np.ndarray  # (N,) -1 where there is none
    rows: np.ndarray  # (J,) images that lost their label
    truth: np.ndarray  # (J,)
    is_known: np.ndarray  # (J,) whether their category has labels left


def take_labels(labels: np.ndarray, seed: int) -> Taken:
    """Take all labels of a third of the classes, and a fifth of the others'."""
    rng = np.random.default_rng((seed, 7))
    classes = rng.permutation(np.unique(labels[labels != UNLABELED]))
    novel = classes[: round(NOVEL_SHARE * len(classes))]
    left = labels.copy()
    for label in classes:
        members = rng.permutation(np.flatnonzero(labels == label))
        is_novel = np.isin(label, novel)
        left[members if is_novel else members[: round(HIDDEN_SHARE * len(members))]] = UNLABELED
    rows = np.flatnonzero(left != labels)
    return Taken(left, rows, labels[rows], ~np.isin(labels[rows], novel))


def main() -> None:
    chosen = _arguments()
    try:
        run(chosen)
    except ShoalError as error:
        print(f"tuning.py: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def run(chosen: argparse.Namespace) -> None:
    """Judge all trials that there is time for, and write the table."""
    began = time.monotonic()
    if chosen.rehearse:
        chosen.data, chosen.encoder = chosen.out, str(make_stand_in(chosen.out, n_blocks=9))
        chosen.device = "cpu"
        chosen.epochs = 1
        chosen.input_size = 32
        chosen.pool = 2
        chosen.workers = 1
    device = choose_device(chosen.device)
    make_folder(chosen.out)
    make_folder(chosen.shared)
    wanted = expand(yaml.safe_load(chosen.trials.read_text()))
    if not chosen.uneven:
        check_even(wanted)
    trials = [trial for trial in wanted if not _file(trial, chosen).exists()]
    _say(f"{len(trials)} of {len(wanted)} trials to do", began)
    with tempfile.TemporaryDirectory(dir=chosen.shared) as shared:
        run_trials(trials, chosen, device, Path(shared), began)
    write_text(chosen.out / "table.md", table(chosen.out) + "\n")
    print((chosen.out / "table.md").read_text())


def expand(listed: list[Trial]) -> list[Trial]:
    """One trial for each combination of values that are given as lists."""
    found = []
    for trial in listed:
        values = [value if isinstance(value, list) else [value] for value in trial.values()]
        found += [dict(zip(trial, chosen, strict=True)) for chosen in itertools.product(*values)]
    return found


def check_even(trials: list[Trial]) -> None:
    """Refuse a list in which one method has more configurations than another; seeds do not count."""
    configurations: dict[str, set[str]] = {}
    for trial in trials:
        configurations.setdefault(trial.get("method", "cms"), set()).add(configuration_of(trial))
    counts = {method: len(found) for method, found in configurations.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{method} {count}" for method, count in counts.items())
        raise UsageError(
            f"trials: found unequal numbers of configurations ({shown}); give every method as many, or --uneven"
        )


def run_trials(
    trials: list[Trial],
    chosen: argparse.Namespace,
    device: torch.device,
    shared: Path,
    began: float,
) -> None:
    """Run the trunk once for all, then let workers take trials, those with the same tokens after each other."""
    loaded = _load_dataset(chosen, device, shared)
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_tokens_key(trial, _settings(trial, chosen)), []).append(trial)
    for group in groups.values():
        settings = _settings(group[0], chosen)
        _task(group[0], loaded, settings)
        _judge_frozen(loaded, settings, began)
        _say(f"tokens ready for {len(group)} trials", began)
    loaded.close()
    context = mp.get_context("spawn")
    waiting = context.Queue()
    for trial in (trial for group in groups.values() for trial in group):
        waiting.put(trial)
    arguments = (waiting, chosen, device.type, shared, began)
    workers = [
        context.Process(target=_work, args=arguments)
        for _ in range(min(chosen.workers, len(trials)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _work(
    waiting: Any, chosen: argparse.Namespace, device_type: str, shared: Path, began: float
) -> None:
    torch.set_num_threads(2)
    loaded = _load_dataset(chosen, torch.device(device_type), shared)
    while True:
        try:
            trial = waiting.get(timeout=1)
        except queue.Empty:
            return
        if time.monotonic() - began > 60 * chosen.minutes:
            _say(f"left out: {trial}", began)
            continue
        start = time.monotonic()
        try:
            found = judge_trial(trial, loaded, _settings(trial, chosen))
        except Exception as error:  # one candidate that diverges must not end the others
            _say(f"failed: {trial}: {error}", began)
            continue
        found |= {"trial": trial, "seconds": round(time.monotonic() - start, 1)}
        write_text(_file(trial, chosen), json.dumps(found) + "\n")
        _say(f"{trial}: {found['tree']} {found['shifted']} {found['seconds']} s", began)


def judge_trial(trial: Trial, loaded: LoadedDataset, settings: Any) -> dict[str, Any]:
    """Take labels away, run the method with what is left, and judge it on what was taken."""
    images = loaded.train
    method = trial.get("method", "cms")
    judge = take_labels(images.labels, settings.training.seed)
    return run_trial(
        _task(trial, loaded, settings), method, settings, judge, images.n_classes, loaded.device
    )


def _task(trial: Trial, loaded: LoadedDataset, settings: Any) -> Task:
    """The images with the labels that are left, their tokens and views."""
    images = loaded.train
    seed = settings.training.seed
    labels = take_labels(images.labels, seed).labels
    is_chosen = "training.snapshot" in trial
    task = Task(
        pixels=images.pixels,
        labels=labels,
        validation=_set_aside(labels, seed) if is_chosen else None,
        n_clusters=None if is_chosen else images.n_classes,
        tokens=loaded.tokens(settings),
    )
    return replace(task, pool=loaded.pool(settings, task))


def _set_aside(labels: np.ndarray, seed: int) -> np.ndarray:
    return hold_out_validation(
        labels, share=VALIDATION_SHARE, rng=np.random.default_rng(seed)
    ).validation


def run_trial(
    task: Task, name: str, settings: Any, judge: Taken, n_classes: int, device: torch.device
) -> dict[str, Any]:
    """Train, cluster, and judge: Ward's tree of the embeddings, and what the method itself makes of them."""
    method = get_method(name)
    learned = method.represent(task, settings, device=device)
    plain = Tree(ward_linkage(learned.embeddings, device=device)).cut(n_classes)
    own = method.cluster(learned, task.labels, settings, n_clusters=n_classes, device=device)
    last = learned.metrics[-1]
    found = {
        "tree": score(plain, judge),
        "shifted": score(own.clusters, judge),
        "n_shifts": own.n_shifts,
    }
    if name != "cms":
        other = shift_and_cut(
            learned, task.labels, CmsSettings(), n_clusters=n_classes, device=device
        )
        found |= {"algorithm1": score(other.clusters, judge)}
    return (
        found
        | {"epoch": learned.epoch}
        | {key: last[key] for key in last if key.startswith("loss")}
    )


def _judge_frozen(loaded: LoadedDataset, settings: Any, began: float) -> None:
    """Say what the encoder is worth as it is, for the seed of these settings."""
    encoder = load_encoder(
        settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size
    )
    tokens = loaded.tokens(settings)
    assert tokens is not None
    device = loaded.device
    n_classes = loaded.train.n_classes
    features = tokens.embed(encoder.to(device).tail, device)
    judge = take_labels(loaded.train.labels, settings.training.seed)
    plain = Tree(ward_linkage(features, device=device)).cut(n_classes)
    found = infer(features, judge.labels, n_classes, device=device)
    _say(
        f"frozen: tree {score(plain, judge)}, after {found.n_shifts} shifts {score(found.labels, judge)}",
        began,
    )


def score(clusters: np.ndarray, judge: Taken) -> list[float]:
    """All / Known / Novel in percent, over the images that lost their label."""
    found = gcd_accuracy(judge.truth, clusters[judge.rows], judge.is_known)
    return [round(100 * value, 1) for value in (found.all, found.known, found.novel)]


def _settings(trial: Trial, chosen: argparse.Namespace) -> Any:
    method = trial.get("method", "cms")
    changes = {
        f"{method}.{name}": value for name, value in trial.items() if name != "method"
    }  # it must have them
    base = {
        "input_size": chosen.input_size,
        "training.epochs": chosen.epochs,
        "training.views.pool": chosen.pool,
    }
    if chosen.rehearse:
        base |= {"encoder": chosen.encoder, "training.batch_size": 64}
        base |= {"head.width": 32, "head.dim": 16, "head.bottleneck": 8}
    return change_settings(
        load_recipe("default", method), method, base | changes, where=f"trial {trial}"
    )


def _load_dataset(chosen: argparse.Namespace, device: torch.device, shared: Path) -> LoadedDataset:
    return LoadedDataset(
        "cub",
        chosen.data,
        device=device,
        input_size=chosen.input_size,
        scratch=chosen.out,
        shared=shared,
    )


def _tokens_key(trial: Trial, settings: Any) -> str:
    """Trials with equal ones look at the same views of the same images."""
    training = settings.training
    is_chosen = "training.snapshot" in trial
    drawn = f"{training.views} {training.seed} {training.epochs} {training.batch_size} {is_chosen}"
    return f"{settings.encoder} {settings.n_tail_blocks} {drawn}"


def _file(trial: Trial, chosen: argparse.Namespace) -> Path:
    text = json.dumps([trial, chosen.epochs, chosen.input_size, chosen.pool], sort_keys=True)
    return chosen.out / f"trial_{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def _say(text: str, began: float) -> None:
    print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--trials", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--pool", type=int, default=16)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument(
        "--shared", type=Path, default=Path("/dev/shm"), help="where workers leave each other files"
    )
    parser.add_argument("--device", default=None)
    parser.add_argument(
        "--uneven", action="store_true", help="allow a list that compares within a method only"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="drawings and a tiny network on the CPU, one epoch"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
