"""An epoch of training, ours beside a straightforward loop of the released shape, in one run.

    python benchmarks/training.py --device cuda --record benchmarks/results/DATE_HARDWARE_training.md
    python benchmarks/training.py --device cuda --network efficientnet-lite2 --ours-only    # at 224 px, 6,000 images
    python benchmarks/training.py --device cpu           # efficientnet-lite2 at 128 px, 1,800 images, ours alone
    python benchmarks/training.py --rehearse             # everything, tiny, on the CPU, in about a minute

An epoch is: renew the bank, train on every batch, embed as many validation images again, Ward's tree, sweep of K. The
parts of a step are timed in one more epoch, waiting for the device after each. The straightforward loop is that of
`straightforward.py`. Random weights and synthetic pictures: time does not depend on what is in them.
"""

import argparse
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.catalog import load_encoder
from shoal.encoders.head import Head, HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.methods.cms import MeanShiftObjective
from shoal.training import forward
from shoal.training.data import TrainingData
from shoal.training.losses import LossSettings
from shoal.training.trainer import Trainer, TrainSettings
from shoal.training.views import ViewSettings
from straightforward import straightforward_epoch

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is trained on what."""

    network: str
    n_images: int = 6000
    n_validation: int = 6000
    side: int = 256
    input_size: int = 224
    batch_size: int = 128
    n_classes: int = 200
    pool: int | None = None
    """Views of each image made once and chosen from; None: new ones in every step."""
    head: HeadSettings = field(default_factory=HeadSettings)


GPU = Size(network="vit-b16")
CPU = Size(network="efficientnet-lite2", n_images=1800, n_validation=360, side=146, input_size=128)
REHEARSAL = Size(
    network="vit-tiny",
    n_images=160,
    n_validation=80,
    side=64,
    input_size=56,
    batch_size=32,
    n_classes=8,
    head=HeadSettings(width=64, dim=32, bottleneck=16),
)

PARTS = ("bank", "training", "validation embedding", "tree and K")
STEP_PARTS = ("views from the pool", "cut", "colours and trunk", "tail and head", "loss", "backward", "optimizer")


def main() -> None:
    arguments = parse()
    size = REHEARSAL if arguments.rehearse else GPU if arguments.device == "cuda" else CPU
    size = replace(size, network=arguments.network or size.network, pool=arguments.pool)
    device = torch.device("cpu" if arguments.rehearse else arguments.device)
    torch.backends.cudnn.benchmark = arguments.cudnn_benchmark
    forward.ON_CUDA = {"backend": "cudagraphs"} if arguments.graphs_only else forward.ON_CUDA
    torch.manual_seed(0)
    rows: list[tuple[str, str]] = []
    check(device, rows)
    images, labels = pictures(size), make_labels(size)
    times = {"ours": ours(size, device, images, labels, compiled=False)}
    if device.type == "cuda":
        name = "ours, CUDA graphs" if arguments.graphs_only else "ours, compiled"
        times[name] = ours(size, device, images, labels, compiled=True)
        off = abs(times[name]["first loss"] / times["ours"]["first loss"] - 1)
        rows.append((f"loss of the first epoch, {name} and ours, relative difference", f"{off:.1e}"))
    if not arguments.ours_only and (device.type == "cuda" or arguments.rehearse):
        times["straightforward"] = straightforward(size, device, images, labels)
    if device.type == "cuda" and not arguments.ours_only:
        for n_images in (6_000, 50_000, 127_000):
            rows.append((f"peak GPU memory, {n_images:,} images", peak_memory(size, n_images, device)))
    report = table(size, device, times, rows)
    print(report)
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(report, encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", choices=("vit-b16", "efficientnet-lite2"), help="another than the device's own")
    parser.add_argument("--pool", type=int, help="choose from so many views of each image, made once")
    parser.add_argument("--record", type=Path, help="also write the table to this file")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU, to see that all of it runs")
    parser.add_argument("--ours-only", action="store_true", help="leave the straightforward loop and the memory out")
    parser.add_argument("--graphs-only", action="store_true", help="compile to CUDA graphs without rewriting kernels")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms first")
    return parser.parse_args()


def make_encoder(size: Size) -> Encoder:
    if size.network == "efficientnet-lite2":
        return load_encoder(size.network, input_size=size.input_size)
    transformers = import_transformers()
    small = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
    side = size.input_size
    config = transformers.ViTConfig(image_size=side, **({} if size.network == "vit-b16" else small))
    model = transformers.ViTModel(config, add_pooling_layer=False)
    return Encoder(size.network, split_model(model, side), InputFormat(size=side, **IMAGENET), 1)


def make_labels(size: Size) -> np.ndarray:
    """Half of the images are of known classes, half of these are labeled."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, size.n_classes, size.n_images + size.n_validation)
    return np.where((truth < size.n_classes // 2) & (rng.random(len(truth)) < 0.5), truth, -1)


def pictures(size: Size) -> np.ndarray:
    """Smooth random pictures, (N, S, S, 3); a few hundred different ones, repeated."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, size=(min(size.n_images, 256), 12, 12, 3), dtype=np.uint8)
    few = np.stack(
        [np.asarray(Image.fromarray(x).resize((size.side, size.side), Image.Resampling.BICUBIC)) for x in coarse]
    )
    return few[np.arange(size.n_images + size.n_validation) % len(few)]


def ours(
    size: Size, device: torch.device, images: np.ndarray, labels: np.ndarray, *, compiled: bool
) -> dict[str, float]:
    torch.manual_seed(0)
    trainer, seconds = make_trainer(size, device, images, labels, compiled=compiled)
    times = {"once": seconds}
    for epoch in range(3):  # the first warms up (and compiles); the better of the others counts
        clock = Clock(device)
        trainer.forget_embeddings()
        clock("bank", lambda: trainer.embed_all())
        row = clock("training", lambda epoch=epoch: trainer.run_epoch(epoch))
        clock("validation embedding", lambda: trainer.embed_all())
        clock("tree and K", lambda: trainer.validate())
        if epoch == 0:
            times |= {"first epoch": sum(clock.times.values()), "first loss": row["loss"]}
        elif "training" not in times or sum(clock.times.values()) < sum(times[name] for name in clock.times):
            times |= clock.times | {"CPU seconds of this process": clock.cpu}
    return times | step_times(trainer, device)


def step_times(trainer: Trainer, device: torch.device) -> dict[str, float]:
    """The seconds of one more epoch by the parts of its steps, the device waited for after each."""
    clock, passes = Clock(device), trainer.forward
    places = [(passes, "cut"), (passes, "tokens"), (passes, "embeddings"), (trainer.objective, "forward")]
    places = [(trainer.pool, "take"), *places, (trainer, "_backward"), (trainer, "_update")]
    for part, (owner, name) in zip(STEP_PARTS, places, strict=True):
        if owner is not None:
            setattr(owner, name, timed(clock, part, getattr(owner, name)))
    trainer.run_epoch(2)
    return clock.times


def timed(clock: "Clock", name: str, work: Callable) -> Callable:
    return lambda *given, **named: clock(name, lambda: work(*given, **named))


def straightforward(size: Size, device: torch.device, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    encoder = make_encoder(size).to(device)
    head = Head(encoder.feature_dim, replace(size.head, kind="bottleneck")).to(device)
    clock = Clock(device)
    n_known = size.n_classes // 2
    straightforward_epoch(
        encoder,
        head,
        images,
        labels,
        n_training=size.n_images,
        batch_size=size.batch_size,
        n_known=n_known,
        clock=clock,
    )
    return clock.times | {"CPU seconds of this process": clock.cpu}


def make_trainer(size: Size, device: torch.device, images, labels, *, compiled: bool) -> tuple[Trainer, float]:
    encoder = make_encoder(size).to(device)
    head = Head(encoder.feature_dim, size.head).to(device)
    objective = MeanShiftObjective(LossSettings(), ShiftSettings(), size.head.dim)
    views = ViewSettings(pool=size.pool)
    settings = TrainSettings(epochs=3, batch_size=size.batch_size, lr=0.01, compile=compiled, views=views)
    validation = np.arange(size.n_images, size.n_images + size.n_validation)
    clock = Clock(device)
    data = TrainingData(pixels=images, labels=labels, validation=validation, trains_on_validation=False)
    trainer = Trainer(data, encoder, head, objective, settings)
    clock("once", trainer.prepare)
    return trainer, clock.times["once"]


def peak_memory(size: Size, n_images: int, device: torch.device) -> str:
    """Pixels and tokens of all images on the device, the bank, and a few steps."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    images = torch.randint(0, 256, (n_images, size.side, size.side, 3), dtype=torch.uint8, device=device)
    labels = np.where(np.arange(n_images) % 4 == 0, np.arange(n_images) % size.n_classes, -1)
    few = replace(size, n_images=n_images, n_validation=0)
    encoder = make_encoder(few).to(device)
    objective = MeanShiftObjective(LossSettings(), ShiftSettings(), size.head.dim)
    head = Head(encoder.feature_dim, size.head).to(device)
    data = TrainingData(pixels=images, labels=labels)
    trainer = Trainer(data, encoder, head, objective, TrainSettings(epochs=1, batch_size=size.batch_size, lr=0.01))
    trainer.prepare()
    bank = trainer.renew_bank(0)
    batches, draws = trainer._draw(0)
    for rows, look in list(zip(batches, draws, strict=True))[:5]:
        trainer._step(rows, look, bank, 0, torch.Generator())
    where = "on the GPU" if trainer.tokens.is_resident else "in a file"
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, tokens {where}"


class Clock:
    """Wall seconds of named parts, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.times, self.cpu = device, {}, 0.0

    def __call__(self, name: str, work: Callable):
        """Do the work, add its time to its name, return what it returns."""
        self._wait()
        began, cpu = time.perf_counter(), time.process_time()
        result = work()
        self._wait()
        self.cpu += time.process_time() - cpu
        self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began
        return result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def check(device: torch.device, rows: list[tuple[str, str]]) -> None:
    """What must hold on this device before its times mean anything."""
    size = replace(REHEARSAL, batch_size=16)
    images, labels = pictures(size), make_labels(size)
    encoder, batch = make_encoder(size), torch.randn(4, 3, 56, 56)
    with torch.no_grad():
        expected = encoder(batch)
        error = float((encoder.to(device)(batch.to(device)).cpu() - expected).abs().max() / expected.abs().max())
    assert error < 1e-3, error
    rows.append(("features in float32, this device and the CPU, relative difference", f"{error:.1e}"))
    losses = []
    for where in ("cpu", device.type):
        torch.manual_seed(0)
        trainer, _ = make_trainer(size, torch.device(where), images, labels, compiled=False)
        losses.append(trainer.run_epoch(0)["loss"])
        estimate = trainer.validate()
        assert estimate.n_clusters is not None
    off = abs(losses[1] - losses[0]) / abs(losses[0])
    assert off < 0.02, losses
    rows.append(("loss of the first epoch, this device and the CPU, relative difference", f"{off:.1e}"))


def table(size: Size, device: torch.device, times: dict[str, dict[str, float]], rows: list[tuple[str, str]]) -> str:
    totals = {name: sum(found[part] for part in PARTS) for name, found in times.items()}
    n_steps = size.n_images // size.batch_size
    lines = [
        f"# An epoch of training: {size.network} at {size.input_size} px, {size.n_images:,} images + "
        f"{size.n_validation:,} for validation, batch {size.batch_size}"
        + (f", {size.pool} views of each image" if size.pool else ""),
        "",
        f"{hardware(device)}; torch {torch.__version__}, Python {platform.python_version()}, commit {commit()}.",
        f"Command: `python {' '.join(sys.argv)}`. Seconds of wall time: the better of two "
        "epochs for ours (the first, which warms up, is given apart), one epoch of the straightforward loop.",
        "",
        *heading("seconds", times),
    ]
    for part in (*PARTS, "CPU seconds of this process", "first epoch", "once"):
        lines.append(row(part, [f"{found[part]:.2f}" if part in found else "" for found in times.values()]))
    lines.append(row("**epoch**", [f"**{total:.2f}**" for total in totals.values()]))
    if "straightforward" in totals:
        ratios = [f"{totals['straightforward'] / total:.1f} ×" for total in totals.values()]
        lines.append(row("times as fast as the straightforward loop", ratios))
    stepped = {name: found for name, found in times.items() if "loss" in found}
    lines += ["", f"Milliseconds of a step ({n_steps} an epoch) by its parts, the device waited for after each:", ""]
    lines += heading("milliseconds", stepped)
    for part in STEP_PARTS:
        if any(part in found for found in stepped.values()):
            lines.append(row(part, [f"{1000 * found[part] / n_steps:.2f}" for found in stepped.values()]))
    sums = [1000 * sum(found.get(part, 0) for part in STEP_PARTS) / n_steps for found in stepped.values()]
    lines.append(row("sum", [f"{total:.2f}" for total in sums]))
    unsplit = [1000 * found["training"] / n_steps for found in stepped.values()]
    lines.append(row("a step without the waiting", [f"{total:.2f}" for total in unsplit]))
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def heading(first: str, columns: dict[str, dict[str, float]]) -> list[str]:
    return [row(first, list(columns)), f"|---|{'---|' * len(columns)}"]


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    return f"{platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
