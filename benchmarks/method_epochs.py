"""Time an epoch of every method, alone on a device, on the same images, tokens and views.

    python benchmarks/method_epochs.py --data DATA --out runs/epochs

DATA holds cub200-train.zip. Each method trains with its default recipe, K given: one epoch to warm
up, then two, of which the faster counts; validation is not included. A method with two stages has a
row for each; GPC, which can count classes while it trains, also a row in which it does. The first
rows are what is done once for all methods.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from shoal.device import choose_device
from shoal.methods.registry import METHODS, load_recipe
from shoal.reproduce.loaded_dataset import LoadedDataset
from shoal.training.model import shape_of
from shoal.training.task import Task
from shoal.training.trainer import Trainer


def seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall and CPU seconds of some work."""
    began = time.perf_counter()
    cpu = time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began, time.process_time() - cpu


def measure_once(loaded: LoadedDataset) -> dict[str, tuple[float, float]]:
    """Time what all methods share: decoding, tokens, views."""
    settings = load_recipe(method="simgcd")
    device = loaded.device
    times = {"once: decoding": seconds(lambda: loaded.train, device)}
    trunk = loaded.trunk
    task = Task(pixels=loaded.train.pixels, labels=loaded.train.labels)
    times["once: tokens, loading the encoder"] = seconds(
        lambda: trunk.prepare(task, settings, with_pool=False), device
    )
    times["once: views"] = seconds(lambda: trunk.prepare(task, settings), device)
    return times


def measure(name: str, loaded: LoadedDataset) -> dict[str, tuple[float, float]]:
    """Return wall and CPU seconds of the faster of two epochs, by stage and whether K is given."""
    settings = load_recipe(method=name)
    images = loaded.train
    device = loaded.device
    task = Task(pixels=images.pixels, labels=images.labels, n_clusters=images.n_classes)
    if not METHODS[name].reads_images:
        task = loaded.trunk.prepare(task, settings)
    times = {}
    for n_clusters in (images.n_classes, None) if name == "gpc" else (images.n_classes,):
        task = replace(task, n_clusters=n_clusters)
        model = METHODS[name].build(settings, shape_of(task)).to(device)
        trainer = Trainer(task, model, settings.training)
        trainer.prepare()
        second_stage = min(getattr(settings, "n_first", 0), settings.training.epochs - 1)
        for first in sorted({0, second_stage}):
            run = [seconds(partial(trainer.run_epoch, first + i), device) for i in range(3)]
            stage = ", second stage" if first else ""
            times[name + stage + ("" if n_clusters else ", K not given")] = min(run[1:])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--methods", nargs="+", default=[name for name, method in METHODS.items() if method.trains]
    )
    parser.add_argument("--device")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(chosen.device)
    loaded = LoadedDataset("cub", chosen.data, device=device, input_size=224)
    print("| method | s an epoch | CPU s |\n|---|---|---|", flush=True)
    for work in (measure_once, *(partial(measure, name) for name in chosen.methods)):
        for what, (wall, cpu) in work(loaded).items():
            print(f"| {what} | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
