"""Choosing settings by given labels alone: some known categories are treated as novel, and judged on.

    PYTHONPATH=src python benchmarks/tuning.py --data DATA --trials grid.yaml --out results/tuning

A third of the known categories of CUB lose their labels, as do a fifth of the labeled images of the others. A method is
trained on the whole collection with the labels that are left, and judged on the images that lost theirs, with one
matching at the true K: accuracy on known and on novel categories, as in the benchmark, without one hidden label of it.
The file of trials is a list of {method: cms, loss.temperature: 0.1, …}; what is not named is the default recipe's. The
last snapshot is judged. A trial that names training.snapshot sets a fifth of the labels left aside from the loss, as
`shoal reproduce` does, so that 'best', chosen by these with K estimated, and 'last' can be compared.

A small network leaves a large GPU waiting for the next kernel, so --workers processes share it, and in --shared the
decoded images and the trunk's tokens, as those of accuracy.py do. Finished trials are kept in --out and not run again.
"""

import argparse
import hashlib
import json
import queue
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import yaml

from shoal.arrays import UNLABELED
from shoal.clustering.inference import infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.data.splits import hold_out_validation
from shoal.device import choose_device
from shoal.encoders.catalog import load_encoder
from shoal.files import make_folder, write_text
from shoal.methods.catalog import get_method, load_recipe
from shoal.methods.cms import CmsSettings
from shoal.methods.cms import cluster as shift_and_cut
from shoal.methods.method import Task
from shoal.reproduce.experiment import change_settings
from shoal.reproduce.stage import Stage

Trial = dict[str, Any]
"""A method, and the settings in which it differs from the default recipe, by dotted name."""

NOVEL_SHARE, HIDDEN_SHARE, VALIDATION_SHARE = 1 / 3, 0.2, 0.2


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
    began = time.monotonic()
    device = choose_device(chosen.device)
    make_folder(chosen.out)
    make_folder(chosen.shared)
    trials = [trial for trial in yaml.safe_load(chosen.trials.read_text()) if not _file(trial, chosen).exists()]
    with tempfile.TemporaryDirectory(dir=chosen.shared) as shared:
        run_trials(trials, chosen, device, Path(shared), began)
    print(table(chosen.out))


def run_trials(
    trials: list[Trial], chosen: argparse.Namespace, device: torch.device, shared: Path, began: float
) -> None:
    """Run the trunk once for all, then let workers take trials, those with the same tokens after each other."""
    stage = _stage(chosen, device, shared)
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_tokens_key(_settings(trial, chosen)), []).append(trial)
    for group in groups.values():
        settings = _settings(group[0], chosen)
        stage.pool(settings)
        _judge_frozen(stage, settings, began)
        _say(f"tokens ready for {len(group)} trials", began)
    stage.close()
    context = mp.get_context("spawn")
    waiting = context.Queue()
    for trial in (trial for group in groups.values() for trial in group):
        waiting.put(trial)
    arguments = (waiting, chosen, device.type, shared, began)
    workers = [context.Process(target=_work, args=arguments) for _ in range(min(chosen.workers, len(trials)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _work(waiting: Any, chosen: argparse.Namespace, device_type: str, shared: Path, began: float) -> None:
    torch.set_num_threads(2)
    stage = _stage(chosen, torch.device(device_type), shared)
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
            found = judge_trial(trial, stage, _settings(trial, chosen))
        except Exception as error:  # one candidate that diverges must not end the others
            _say(f"failed: {trial}: {error}", began)
            continue
        found |= {"trial": trial, "seconds": round(time.monotonic() - start, 1)}
        write_text(_file(trial, chosen), json.dumps(found) + "\n")
        _say(f"{trial}: {found['tree']} {found['shifted']} {found['seconds']} s", began)


def judge_trial(trial: Trial, stage: Stage, settings: Any) -> dict[str, Any]:
    """Take labels away, run the method with what is left, and judge it on what was taken."""
    images, seed = stage.train, settings.training.seed
    judge = take_labels(images.labels, seed)
    is_chosen = "training.snapshot" in trial
    task = Task(
        pixels=images.pixels,
        labels=judge.labels,
        validation=_set_aside(judge.labels, seed) if is_chosen else None,
        n_clusters=None if is_chosen else images.n_classes,
        tokens=stage.tokens(settings),
        pool=stage.pool(settings),
    )
    return run_trial(task, trial.get("method", "cms"), settings, judge, images.n_classes, stage.device)


def _set_aside(labels: np.ndarray, seed: int) -> np.ndarray:
    return hold_out_validation(labels, share=VALIDATION_SHARE, rng=np.random.default_rng(seed)).validation


def run_trial(
    task: Task, name: str, settings: Any, judge: Taken, n_classes: int, device: torch.device
) -> dict[str, Any]:
    """Train, cluster, and judge: Ward's tree of the embeddings, and what the method itself makes of them."""
    method = get_method(name)
    learned = method.represent(task, settings, device=device)
    plain = Tree(ward_linkage(learned.embeddings, device=device)).cut(n_classes)
    own = method.cluster(learned, task.labels, settings, n_clusters=n_classes, device=device)
    last = learned.metrics[-1]
    found = {"tree": score(plain, judge), "shifted": score(own.clusters, judge), "n_shifts": own.n_shifts}
    if name != "cms":
        other = shift_and_cut(learned, task.labels, CmsSettings(), n_clusters=n_classes, device=device)
        found |= {"algorithm1": score(other.clusters, judge)}
    return found | {"epoch": learned.epoch} | {key: last[key] for key in last if key.startswith("loss")}


def _judge_frozen(stage: Stage, settings: Any, began: float) -> None:
    """Say what the encoder is worth as it is, for the seed of these settings."""
    encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size)
    tokens = stage.tokens(settings)
    assert tokens is not None
    features, n_classes, device = tokens.embed(encoder.to(stage.device), None), stage.train.n_classes, stage.device
    judge = take_labels(stage.train.labels, settings.training.seed)
    plain = Tree(ward_linkage(features, device=device)).cut(n_classes)
    found = infer(features, judge.labels, n_classes, device=device)
    _say(f"frozen: tree {score(plain, judge)}, after {found.n_shifts} shifts {score(found.labels, judge)}", began)


def score(clusters: np.ndarray, judge: Taken) -> list[float]:
    """All / Known / Novel in percent, over the images that lost their label."""
    found = gcd_accuracy(judge.truth, clusters[judge.rows], judge.is_known)
    return [round(100 * value, 1) for value in (found.all, found.known, found.novel)]


def table(out: Path) -> str:
    """All finished trials, the best first; trials that differ in their seed only are averaged."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in out.glob("trial_*.json"):
        result = json.loads(file.read_text())
        changes = {name: value for name, value in result["trial"].items() if name != "training.seed"}
        found.setdefault(json.dumps(changes, sort_keys=True), []).append(result)
    lines = []
    for changes, several in found.items():
        means = {key: np.mean([one[key] for one in several], axis=0) for key in ("tree", "shifted")}
        shown = ", ".join(f"{name} {value}" for name, value in json.loads(changes).items())
        cells = [" / ".join(f"{value:.1f}" for value in means[key]) for key in ("tree", "shifted")]
        if "algorithm1" in several[0]:
            shown += (
                f" (Algorithm 1: {' / '.join(f'{v:.1f}' for v in np.mean([o['algorithm1'] for o in several], axis=0))})"
            )
        shifts = [one["n_shifts"] for one in several]
        seconds = round(float(np.mean([one["seconds"] for one in several])))
        lines.append(
            (-means["shifted"][0], f"| {shown} | {len(several)} | {cells[0]} | {cells[1]} | {shifts} | {seconds} |")
        )
    head = ["| trial | seeds | tree | method's own clustering | shifts | s |", "|---" * 6 + "|"]
    return "\n".join([*head, *(line for _, line in sorted(lines))])


def _settings(trial: Trial, chosen: argparse.Namespace) -> Any:
    method = trial.get("method", "cms")
    changes = {name: value for name, value in trial.items() if name != "method"}
    base = {"input_size": chosen.input_size, "training.epochs": chosen.epochs, "training.views.pool": chosen.pool}
    return change_settings(load_recipe("default", method), method, base | changes, where=f"trial {trial}")


def _stage(chosen: argparse.Namespace, device: torch.device, shared: Path) -> Stage:
    return Stage("cub", chosen.data, device=device, input_size=chosen.input_size, scratch=chosen.out, shared=shared)


def _tokens_key(settings: Any) -> str:
    return f"{settings.encoder} {settings.n_tail_blocks} {settings.training.views} {settings.training.seed}"


def _file(trial: Trial, chosen: argparse.Namespace) -> Path:
    text = json.dumps([trial, chosen.epochs, chosen.input_size, chosen.pool], sort_keys=True)
    return chosen.out / f"trial_{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def _say(text: str, began: float) -> None:
    print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trials", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--pool", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--shared", type=Path, default=Path("/dev/shm"), help="where workers leave each other files")
    parser.add_argument("--device", default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
