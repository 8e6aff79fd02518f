"""Time a frozen trunk in each engine of this machine, side by side, and compare the results.

python benchmarks/engines.py [--n 64] [--rounds 5] [--folder DIR] [--seeds 5] [--simulated]

With --folder, a folder with a folder of images per class, accuracy and K on frozen embeddings are
compared too: half of the classes are known, half of their images labeled, K estimated.
--simulated adds bfloat16 on an x86 processor without it, as OpenVINO simulates it.
"""

import argparse
import os
import resource
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

from shoal.allocator import keep_freed_memory

keep_freed_memory()

import numpy as np
import torch
from torch.nn import functional as F

from records import write_table
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.sums import unit_points
from shoal.data.pixels import load_pixels
from shoal.data.readers import read_collection
from shoal.encoders import engines
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.encoders.engines import ENGINES, check_engine, use_engine
from shoal.encoders.vision import Encoder
from shoal.errors import MissingError


def engines_here() -> list[str]:
    found = []
    for engine in ENGINES:
        try:
            check_engine(engine)
        except MissingError:
            continue
        found.append(engine)
    return found


def load(name: str, engine: str) -> Encoder:
    with use_engine(engine):
        encoder = load_encoder(name)
    assert encoder.engine == engine
    return encoder


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@torch.inference_mode()
def time_trunks(name: str, n_images: int, rounds: int) -> list[str]:
    """A row per engine: medians over rounds, the engines taking turns."""
    encoders = {engine: load(name, engine) for engine in engines_here()}
    size = load(name, "torch").input_format.size
    images = torch.rand(n_images, 3, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    features = {
        engine: F.normalize(e.tail(e.run_trunk(images)), dim=1) for engine, e in encoders.items()
    }
    spent: dict[str, list[tuple[float, float]]] = {engine: [] for engine in encoders}
    for _ in range(rounds):
        for engine, encoder in encoders.items():
            cpu = cpu_seconds()
            wall = time.perf_counter()
            encoder.run_trunk(images)
            spent[engine].append((cpu_seconds() - cpu, time.perf_counter() - wall))
    rows = [
        "| trunk | CPU ms an image | wall ms an image | lowest cosine to torch |",
        "|---|---|---|---|",
    ]
    for engine, times in spent.items():
        cpu, wall = (1000 * median(column) / n_images for column in zip(*times, strict=True))
        cosine = (features[engine] * features["torch"]).sum(dim=1).min()
        rows.append(f"| {engine} | {cpu:.1f} | {wall:.1f} | {cosine:.5f} |")
    return rows


def compare_answers(name: str, folder: Path, n_seeds: int) -> list[str]:
    """Return a row per sample of known classes and labels: All in percent, and K, by engine."""
    collection = read_collection(folder)
    pixels = load_pixels(collection)
    y = collection.labels[pixels.index]
    embeddings = {engine: embed(pixels, load(name, engine)) for engine in engines_here()}
    rows = [
        f"| seed ({folder.name}) | {' | '.join(embeddings)} |",
        "|---" * (1 + len(embeddings)) + "|",
    ]
    for seed in range(n_seeds):
        rng = np.random.default_rng(seed)
        known = np.sort(rng.permutation(len(collection.classes))[: len(collection.classes) // 2])
        is_known = np.isin(y, known)
        labels = np.where(is_known & (rng.random(len(y)) < 0.5), np.searchsorted(known, y), -1)
        cells = []
        for x in embeddings.values():
            found = infer(unit_points(x), labels, None, InferenceSettings())
            scored = labels < 0
            accuracy = gcd_accuracy(y[scored], found.labels[scored], is_known[scored])
            cells.append(f"{100 * accuracy.all:.1f}, K {found.n_clusters}")
        rows.append(f"| {seed} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default=DEFAULT_ENCODER)
    parser.add_argument("--n", type=int, default=64, help="images a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder of images per class")
    parser.add_argument("--seeds", type=int, default=5, help="draws of known classes and labels")
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="also the answers of bfloat16 where it is simulated",
    )
    parser.add_argument("--record", type=Path, help="write the result to this file")
    arguments = parser.parse_args()
    load_average = os.getloadavg()[0]
    rows = time_trunks(arguments.encoder, arguments.n, arguments.rounds)
    if arguments.simulated:
        engines.native_precisions = lambda: ["bf16"]
    if arguments.folder:
        rows += ["", *compare_answers(arguments.encoder, arguments.folder, arguments.seeds)]
    notes = f"{arguments.encoder}, OpenVINO {version('openvino')}, load average {load_average:.1f}"
    write_table(rows, arguments.record, notes)


if __name__ == "__main__":
    main()
