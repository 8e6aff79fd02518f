"""An epoch of training, ours beside a straightforward loop of the released shape, in one run.

    python benchmarks/training.py --device cuda --record benchmarks/results/DATE_HARDWARE_training.md
    python benchmarks/training.py --device cpu           # efficientnet-lite2 at 128 px, 1,800 images, ours alone
    python benchmarks/training.py --rehearse             # everything, tiny, on the CPU, in about a minute

An epoch is: renew the bank, train on every batch, embed as many validation images again, Ward's tree, sweep of K. The
straightforward loop decodes a JPEG for every view (by worker processes), computes in float32, sends every image through
the whole network for the bank, looks neighbors up on the CPU, and uses scipy's Ward and a cut and a matching per K.
Random weights and synthetic pictures: time does not depend on what is in them.
"""

import argparse
import gc
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.catalog import load_encoder
from shoal.encoders.head import Head, HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.vision import Encoder, InputFormat, split_transformer
from shoal.methods.cms import MeanShiftObjective
from shoal.training.losses import LossSettings
from shoal.training.trainer import Trainer, TrainingData, TrainSettings

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is trained on what."""

    network: str
    n_images: int
    n_validation: int
    side: int
    batch_size: int
    n_classes: int = 200
    head: HeadSettings = field(default_factory=HeadSettings)


GPU = Size(network="vit-b16", n_images=6000, n_validation=6000, side=256, batch_size=128)
CPU = Size(network="efficientnet-lite2", n_images=1800, n_validation=360, side=146, batch_size=128)
REHEARSAL = Size(
    network="vit-tiny",
    n_images=160,
    n_validation=80,
    side=64,
    batch_size=32,
    n_classes=8,
    head=HeadSettings(width=64, dim=32, bottleneck=16),
)


def main() -> None:
    arguments = parse()
    size = REHEARSAL if arguments.rehearse else GPU if arguments.device == "cuda" else CPU
    device = torch.device("cpu" if arguments.rehearse else arguments.device)
    torch.manual_seed(0)
    rows: list[tuple[str, str]] = []
    check(device, rows)
    images, labels = pictures(size), make_labels(size)
    times = {"ours": ours(size, device, images, labels, compiled=False)}
    if device.type == "cuda":
        times["ours, compiled trunk"] = ours(size, device, images, labels, compiled=True)
    if not arguments.ours_only and (device.type == "cuda" or arguments.rehearse):
        times["straightforward"] = straightforward(size, device, images, labels)
    if device.type == "cuda":
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
    parser.add_argument("--record", type=Path, help="also write the table to this file")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU, to see that all of it runs")
    parser.add_argument("--ours-only", action="store_true", help="leave the straightforward loop out")
    return parser.parse_args()


def make_encoder(size: Size) -> Encoder:
    if size.network == "efficientnet-lite2":
        return load_encoder(size.network, input_size=128)
    transformers = import_transformers()
    small = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
    side = 224 if size.network == "vit-b16" else 56
    config = transformers.ViTConfig(image_size=side, **({} if size.network == "vit-b16" else small))
    model = transformers.ViTModel(config, add_pooling_layer=False)
    return Encoder(size.network, split_transformer(model, side), InputFormat(size=side, **IMAGENET), 1)


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
    trainer, seconds = make_trainer(size, device, images, labels, compiled=compiled)
    times = {"once": seconds}
    for epoch in range(3):  # the first warms up (and compiles); the better of the others counts
        clock = Clock(device)
        trainer.forget_embeddings()
        clock("bank", lambda: trainer.embed_all())
        clock("training", lambda epoch=epoch: trainer.run_epoch(epoch))
        clock("validation embedding", lambda: trainer.embed_all())
        clock("tree and K", lambda: trainer.validate())
        if epoch == 0:
            times["first epoch"] = sum(clock.times.values())
        elif "training" not in times or sum(clock.times.values()) < sum(times[name] for name in clock.times):
            times |= clock.times | {"CPU seconds of this process": clock.cpu}
    return times


def make_trainer(size: Size, device: torch.device, images, labels, *, compiled: bool) -> tuple[Trainer, float]:
    encoder = make_encoder(size).to(device)
    head = Head(encoder.feature_dim, size.head).to(device)
    objective = MeanShiftObjective(LossSettings(), ShiftSettings(), size.head.dim)
    settings = TrainSettings(epochs=3, batch_size=size.batch_size, lr=0.01, compile=compiled)
    validation = np.arange(size.n_images, size.n_images + size.n_validation)
    clock = Clock(device)
    data = TrainingData(pixels=images, labels=labels, validation=validation)
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


class Files(Dataset):
    """Decode and augment with PIL and numpy, in a worker process; `views` random views, or a centre crop."""

    def __init__(self, folder: Path, rows: np.ndarray, side: int, n_views: int) -> None:
        self.files, self.rows, self.side, self.n_views = sorted(folder.iterdir()), rows, side, n_views

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int):
        file = self.files[self.rows[i] % len(self.files)]
        return torch.stack([self._view(file) for _ in range(self.n_views or 1)]), int(self.rows[i])

    def _view(self, file: Path) -> torch.Tensor:
        image = Image.open(file).convert("RGB")
        larger = round(self.side / 0.875)
        width, height = image.size
        scale = larger / min(width, height)
        image = image.resize(
            (max(larger, round(width * scale)), max(larger, round(height * scale))), Image.Resampling.BICUBIC
        )
        free = (image.width - self.side, image.height - self.side)
        left, top = (np.random.randint(0, f + 1) if self.n_views else f // 2 for f in free)  # noqa: NPY002
        image = image.crop((left, top, left + self.side, top + self.side))
        if self.n_views and np.random.rand() < 0.5:  # noqa: NPY002
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mean, std = (np.array(IMAGENET[name], np.float32) for name in ("mean", "std"))
        return torch.from_numpy((np.asarray(image, np.float32) / 255 - mean) / std).permute(2, 0, 1).contiguous()


def straightforward(size: Size, device: torch.device, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder), images, size)
        return straightforward_epoch(size, device, Path(folder), labels)


def write_jpegs(folder: Path, images: np.ndarray, size: Size) -> None:
    """Files of the size of CUB's photographs, 500 x 375; as many different ones as there are pictures."""
    shape = (500, 375) if size.side >= 200 else (100, 75)
    for i in range(min(len(images), 256)):
        content = io.BytesIO()
        Image.fromarray(images[i]).resize(shape, Image.Resampling.BICUBIC).save(content, "jpeg", quality=90)
        (folder / f"{i:06d}.jpg").write_bytes(content.getvalue())


def straightforward_epoch(size: Size, device: torch.device, folder: Path, labels: np.ndarray) -> dict[str, float]:
    encoder = make_encoder(size).to(device)
    head = Head(encoder.feature_dim, replace(size.head, kind="bottleneck")).to(device)
    model = nn.Sequential(encoder.trunk, encoder.tail, head)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    side = encoder.input_format.size
    workers = n_workers(side, size.batch_size) if device.type == "cuda" else 0
    rows = np.arange(size.n_images)

    def loader(rows: np.ndarray, n_views: int, *, shuffle: bool) -> DataLoader:
        data = Files(folder, rows, side, n_views)
        return DataLoader(
            data, size.batch_size, shuffle=shuffle, num_workers=workers, drop_last=shuffle, pin_memory=False
        )

    def embed(rows: np.ndarray, n_views: int) -> torch.Tensor:
        with torch.no_grad():
            parts = [model(views.flatten(0, 1).to(device)).cpu() for views, _ in loader(rows, n_views, shuffle=False)]
        return torch.cat(parts)

    def epoch_of_steps(bank: torch.Tensor) -> None:
        for views, index in loader(rows, 2, shuffle=True):
            v = model(torch.cat([views[:, 0], views[:, 1]]).to(device))
            near = (v.detach().cpu() @ bank.T).topk(9, dim=1).indices[:, 1:]  # on the CPU, in float32
            z = F.normalize(0.5 * v + 0.5 * bank[near].mean(dim=1).to(device), dim=1)
            own = torch.from_numpy(labels[index.numpy()]).repeat(2).to(device)
            loss = 0.65 * slow_contrast(z, 0.25) + 0.35 * slow_supervised(v, own, 0.07)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

    clock = Clock(device)
    bank = clock("bank", lambda: embed(rows, 2))
    clock("training", lambda: epoch_of_steps(bank))
    validation = np.arange(size.n_images, size.n_images + size.n_validation)
    embeddings = clock("validation embedding", lambda: embed(validation, 0))
    clock("tree and K", lambda: slow_sweep(embeddings.numpy(), labels[validation], size.n_classes // 2))
    return clock.times | {"CPU seconds of this process": clock.cpu}


def n_workers(side: int, batch_size: int) -> int:
    """One per core up to 16, as many as the shared memory has room for: each holds up to two batches of two views."""
    room = shutil.disk_usage("/dev/shm").free // (2 * batch_size * 2 * 3 * side * side * 4)
    return int(min(16, os.cpu_count() or 1, room))


def slow_contrast(z: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def slow_supervised(v: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    v, labels = v[labels >= 0], labels[labels >= 0]
    if not len(v):
        return v.sum()
    itself = torch.eye(len(v), dtype=torch.bool, device=v.device)
    logits = (v @ v.T / temperature).masked_fill(itself, -1e9)
    positives = (labels[:, None] == labels) & ~itself
    log_share = logits - logits.logsumexp(dim=1, keepdim=True)
    return -((log_share * positives).sum(dim=1) / positives.sum(dim=1).clamp_min(1)).mean()


def slow_sweep(embeddings: np.ndarray, labels: np.ndarray, n_known: int) -> int:
    """scipy's tree; for K = known + 1, + 2, … a cut and a matching, until 50 in a row are no better."""
    tree = linkage(embeddings, "ward")
    best, best_k, since = -1.0, n_known, 0
    for k in range(n_known + 1, min(len(embeddings), 10 * n_known)):
        clusters = fcluster(tree, k, "maxclust") - 1
        counts = np.zeros((k, n_known), int)
        for cluster, label in zip(clusters, labels, strict=True):
            if label >= 0:
                counts[cluster, label] += 1
        matched = counts[linear_sum_assignment(counts, maximize=True)].sum()
        best, best_k, since = (matched, k, 0) if matched > best else (best, best_k, since + 1)
        if since >= 50:
            break
    return best_k


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
    parts = ("bank", "training", "validation embedding", "tree and K")
    totals = {name: sum(found[part] for part in parts) for name, found in times.items()}
    lines = [
        f"# An epoch of training: {size.network}, {size.n_images:,} images + {size.n_validation:,} for validation, "
        f"batch {size.batch_size}",
        "",
        f"{hardware(device)}; torch {torch.__version__}, Python {platform.python_version()}, commit {commit()}.",
        f"Command: `python {' '.join(sys.argv)}`. Seconds of wall time: the better of two "
        "epochs for ours (the first, which warms up, is given apart), one epoch of the straightforward loop.",
        "",
        f"| seconds | {' | '.join(times)} |",
        f"|---|{'---|' * len(times)}",
    ]
    for part in (*parts, "CPU seconds of this process", "first epoch", "once"):
        lines.append(
            f"| {part} | {' | '.join(f'{found[part]:.2f}' if part in found else '' for found in times.values())} |"
        )
    lines.append(f"| **epoch** | {' | '.join(f'**{total:.2f}**' for total in totals.values())} |")
    if "straightforward" in totals:
        ratios = [f"{totals['straightforward'] / total:.1f} ×" for total in totals.values()]
        lines.append(f"| times as fast as the straightforward loop | {' | '.join(ratios)} |")
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores"
    return f"{platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads"


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
