"""Choosing settings by given labels alone: some known categories are treated as novel, and judged on.

    PYTHONPATH=src python benchmarks/tuning.py --data DATA --trials grid.yaml --out results/tuning

A third of the known categories of CUB lose their labels, as do a fifth of the labeled images of the others. A method is
trained on the whole collection with the labels that are left, and judged on the images that lost theirs, with one
matching at the true K: accuracy on known and on novel categories, as in the benchmark, without one hidden label of it.
The file of trials is a list of {method: cms, loss.temperature: 0.1, …}; what is not named is the default recipe's. The
last snapshot is judged. A trial that names training.snapshot sets a fifth of the labels left aside from the loss, as
`shoal reproduce` does, so that 'best', chosen by these with K estimated, and 'last' can be compared.

A small network leaves a large GPU waiting for the next kernel, so --workers processes share it. Trials of one tail and
seed share the trunk's tokens of all images and of a pool of views. Finished trials are kept in --out and not run again.
"""

import argparse
import hashlib
import json
import queue
import sys
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
from shoal.methods.method import Task
from shoal.reproduce.stage import Stage
from shoal.settings import from_dict, to_dict
from shoal.training.tokens import TokenCache, ViewPool, cache_tokens, pool_views
from shoal.training.trainer import pool_generator

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
    trials = [trial for trial in yaml.safe_load(chosen.trials.read_text()) if not _file(trial, chosen).exists()]
    stage = Stage("cub", chosen.data, device=device, input_size=chosen.input_size, scratch=chosen.out)
    pixels, labels, n_classes = stage.train.pixels, stage.train.labels, stage.train.n_classes
    _say(f"{len(labels)} images read, {len(trials)} trials", began)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for trial in trials:
        groups.setdefault(_group(_settings(trial, chosen)), []).append(trial)
    for group in groups.values():
        shared = _share_tokens(pixels, _settings(group[0], chosen), device, chosen)
        _say(f"tokens ready for {len(group)} trials", began)
        _judge_frozen(shared, _settings(group[0], chosen), labels, n_classes, device, began)
        context = mp.get_context("spawn")
        waiting = context.Queue()
        for trial in group:
            waiting.put(trial)
        n_workers = min(chosen.workers, len(group))
        arguments = (waiting, shared, labels, n_classes, chosen, device.type, began)
        workers = [context.Process(target=_work, args=arguments) for _ in range(n_workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print(table(chosen.out))


def _work(
    waiting: Any,
    shared: dict[str, Path],
    labels: np.ndarray,
    n_classes: int,
    chosen: argparse.Namespace,
    device_type: str,
    began: float,
) -> None:
    device = torch.device(device_type)
    torch.set_num_threads(2)
    tokens = {name: torch.from_numpy(np.load(file)).to(device) for name, file in shared.items()}
    rows = np.zeros((len(labels), 8, 8, 3), dtype=np.uint8)  # every token is there already, so no pixel is looked at
    while True:
        try:
            trial = waiting.get(timeout=1)
        except queue.Empty:
            return
        if time.monotonic() - began > 60 * chosen.minutes:
            _say(f"left out: {trial}", began)
            continue
        start = time.monotonic()
        settings = _settings(trial, chosen)
        judge = take_labels(labels, settings.training.seed)
        is_chosen = "training.snapshot" in trial
        task = Task(
            pixels=rows,
            labels=judge.labels,
            validation=_set_aside(judge.labels, settings.training.seed) if is_chosen else None,
            n_clusters=None if is_chosen else n_classes,
            tokens=TokenCache(tokens["images"], 256),
            pool=ViewPool(tokens["views"], settings.training.views.pool),
        )
        try:
            found = run_trial(task, trial.get("method", "cms"), settings, judge, n_classes, device)
        except Exception as error:  # one candidate that diverges must not end the others
            _say(f"failed: {trial}: {error}", began)
            continue
        found |= {"trial": trial, "seconds": round(time.monotonic() - start, 1)}
        write_text(_file(trial, chosen), json.dumps(found) + "\n")
        _say(f"{trial}: {found['tree']} {found['shifted']} {found['seconds']} s", began)


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
        from shoal.methods.cms import CmsSettings
        from shoal.methods.cms import cluster as shift_and_cut

        other = shift_and_cut(learned, task.labels, CmsSettings(), n_clusters=n_classes, device=device)
        found |= {"algorithm1": score(other.clusters, judge)}
    return found | {"epoch": learned.epoch} | {key: last[key] for key in last if key.startswith("loss")}


def _judge_frozen(
    shared: dict[str, Path], settings: Any, labels: np.ndarray, n_classes: int, device: torch.device, began: float
) -> None:
    """Say what the encoder is worth as it is, for the seed of these settings."""
    encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size)
    tokens = TokenCache(torch.from_numpy(np.load(shared["images"])).to(device), 256)
    features = tokens.embed(encoder.to(device), None)
    judge = take_labels(labels, settings.training.seed)
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


def _settings(trial: dict[str, Any], chosen: argparse.Namespace) -> Any:
    method = trial.get("method", "cms")
    changes = {name: value for name, value in trial.items() if name != "method"}
    base = {"input_size": chosen.input_size, "training.epochs": chosen.epochs, "training.views.pool": chosen.pool}
    plain = to_dict(load_recipe("default", method))
    for name, value in (base | changes).items():
        *folders, last = name.split(".")
        place = plain
        for folder in folders:
            place = place[folder]
        place[last] = value
    return from_dict(get_method(method).settings, plain)


def _group(settings: Any) -> tuple[Any, ...]:
    return (settings.n_tail_blocks, settings.training.views.pool, settings.training.views.jitter)


def _share_tokens(pixels: Any, settings: Any, device: torch.device, chosen: argparse.Namespace) -> dict[str, Path]:
    encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size)
    encoder = encoder.to(device)
    views, generator = settings.training.views, pool_generator(0)
    found = {
        "images": cache_tokens(pixels, encoder, batch_size=512).tokens,
        "views": pool_views(pixels, encoder, views, generator=generator, batch_size=512).tokens,
    }
    make_folder(chosen.scratch)
    for name, tokens in found.items():
        np.save(chosen.scratch / f"{name}.npy", tokens.cpu().numpy())
    return {name: chosen.scratch / f"{name}.npy" for name in found}


def _file(trial: dict[str, Any], chosen: argparse.Namespace) -> Path:
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
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm/shoal-tuning"))
    parser.add_argument("--device", default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
