"""An epoch of SimGCD as released code has it, for `method_epochs.py` to compare with.

Worker processes decode a JPEG for every view, and everything is computed in float32.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from shoal.encoders.vision import Encoder, InputFormat


class Files(Dataset):
    """Two random views of each JPEG of a folder, decoded and augmented with PIL and numpy."""

    def __init__(self, folder: Path, wanted: InputFormat) -> None:
        self.files = sorted(folder.iterdir())
        self.side = wanted.size
        self.mean = np.float32(wanted.mean)
        self.std = np.float32(wanted.std)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int):
        return torch.stack([self._view(self.files[row]) for _ in range(2)]), row

    def _view(self, file: Path) -> torch.Tensor:
        image = Image.open(file).convert("RGB")
        larger = round(self.side / 0.875)
        width, height = image.size
        scale = larger / min(width, height)
        image = image.resize(
            (max(larger, round(width * scale)), max(larger, round(height * scale))),
            Image.Resampling.BICUBIC,
        )
        left = np.random.randint(0, image.width - self.side + 1)  # noqa: NPY002
        top = np.random.randint(0, image.height - self.side + 1)  # noqa: NPY002
        image = image.crop((left, top, left + self.side, top + self.side))
        if np.random.rand() < 0.5:  # noqa: NPY002
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        scaled = (np.asarray(image, np.float32) / 255 - self.mean) / self.std
        return torch.from_numpy(scaled).permute(2, 0, 1).contiguous()


def write_jpegs(folder: Path, images: np.ndarray) -> None:
    """Write a JPEG for every picture, 500 x 375 as CUB's photographs are."""

    def write(i: int) -> None:
        enlarged = Image.fromarray(images[i]).resize((500, 375), Image.Resampling.BICUBIC)
        enlarged.save(folder / f"{i:06d}.jpg", quality=90)

    with ThreadPoolExecutor() as threads:
        for _ in threads.map(write, range(len(images))):
            pass


def simgcd_epoch(
    encoder: Encoder, n_clusters: int, folder: Path, labels: np.ndarray, *, batch_size: int
) -> None:
    """Train SimGCD on every file of a folder once."""
    device = encoder.device
    network = nn.Sequential(encoder.trunk, encoder.tail)
    head = nn.Sequential(
        nn.Linear(encoder.feature_dim, 2048),
        nn.GELU(),
        nn.Linear(2048, 2048),
        nn.GELU(),
        nn.Linear(2048, 256),
    ).to(device)
    outputs = nn.Parameter(0.02 * torch.randn(n_clusters, encoder.feature_dim, device=device))
    trained = [p for p in (*network.parameters(), *head.parameters(), outputs) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    workers = n_workers(encoder.input_format.size, batch_size) if device.type == "cuda" else 0
    data = Files(folder, encoder.input_format)
    batches = DataLoader(data, batch_size, shuffle=True, num_workers=workers, drop_last=True)
    for views, index in batches:
        features = network(torch.cat([views[:, 0], views[:, 1]]).to(device))
        own = torch.from_numpy(labels[index.numpy()]).repeat(2).to(device)
        cosines = F.normalize(features, dim=1) @ F.normalize(outputs, dim=1).T
        projected = F.normalize(head(features), dim=1)
        loss = slow_classification(cosines, own)
        loss = loss + 0.65 * slow_contrast(projected, 1.0)
        loss = loss + 0.35 * slow_supervised(projected, own, 0.07)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def slow_classification(cosines: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """SimGCD's distillation, mean-entropy maximization and cross-entropy of the labels."""
    first, second = (cosines.detach() / 0.04).softmax(dim=1).chunk(2)
    predicted = (cosines / 0.1).log_softmax(dim=1)
    distillation = -(torch.cat([second, first]) * predicted).sum(dim=1).mean()
    mean = predicted.exp().mean(dim=0)
    negative_entropy = (mean * mean.log()).sum()
    known = labels >= 0
    classified = F.nll_loss(predicted[known], labels[known]) if known.any() else 0.0
    return 0.65 * (distillation + negative_entropy) + 0.35 * classified


def n_workers(side: int, batch_size: int) -> int:
    """One per core up to 16, if two batches of two views each fit into the shared memory."""
    room = shutil.disk_usage("/dev/shm").free // (2 * batch_size * 2 * 3 * side * side * 4)
    return int(min(16, os.cpu_count() or 1, room))


def slow_contrast(z: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def slow_supervised(v: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    v = v[labels >= 0]
    labels = labels[labels >= 0]
    if not len(v):
        return v.sum()
    itself = torch.eye(len(v), dtype=torch.bool, device=v.device)
    logits = (v @ v.T / temperature).masked_fill(itself, -1e9)
    positives = (labels[:, None] == labels) & ~itself
    log_share = logits - logits.logsumexp(dim=1, keepdim=True)
    return -((log_share * positives).sum(dim=1) / positives.sum(dim=1).clamp_min(1)).mean()
