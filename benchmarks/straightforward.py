"""The straightforward loops that `training.py` and `method_epochs.py` are measured beside, as released code has them.

A JPEG is decoded for every view (by worker processes), everything is computed in float32, every image goes through the
whole network for the bank, neighbors are looked up on the CPU, and validation is scipy's Ward with a cut and a matching
for each K.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from shoal.encoders.head import Head
from shoal.encoders.vision import Encoder, InputFormat


class Files(Dataset):
    """Decode and augment with PIL and numpy, in a worker process; `views` random views, or a center crop."""

    def __init__(self, folder: Path, rows: np.ndarray, wanted: InputFormat, n_views: int) -> None:
        self.files = sorted(folder.iterdir())
        self.rows = rows
        self.n_views = n_views
        self.side = wanted.size
        self.mean = np.float32(wanted.mean)
        self.std = np.float32(wanted.std)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int):
        file = self.files[self.rows[i]]
        return torch.stack([self._view(file) for _ in range(self.n_views or 1)]), int(self.rows[i])

    def _view(self, file: Path) -> torch.Tensor:
        image = Image.open(file).convert("RGB")
        larger = round(self.side / 0.875)
        width, height = image.size
        scale = larger / min(width, height)
        image = image.resize(
            (max(larger, round(width * scale)), max(larger, round(height * scale))),
            Image.Resampling.BICUBIC,
        )
        free = (image.width - self.side, image.height - self.side)
        left, top = (np.random.randint(0, f + 1) if self.n_views else f // 2 for f in free)  # noqa: NPY002
        image = image.crop((left, top, left + self.side, top + self.side))
        if self.n_views and np.random.rand() < 0.5:  # noqa: NPY002
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        scaled = (np.asarray(image, np.float32) / 255 - self.mean) / self.std
        return torch.from_numpy(scaled).permute(2, 0, 1).contiguous()


def straightforward_epoch(
    encoder: Encoder,
    head: Head,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    n_training: int,
    batch_size: int,
    n_known: int,
    clock: Callable,
) -> None:
    """Train CMS on the first images and validate on the others; `clock` takes the time of each part."""
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder), images)
        rows = np.arange(n_training)
        validation = np.arange(n_training, len(labels))
        run(encoder, head, Path(folder), labels, rows, validation, batch_size, n_known, clock)


def write_jpegs(folder: Path, images: np.ndarray) -> None:
    """A file for every picture, of the size of CUB's photographs, 500 x 375; tiny ones in the rehearsal."""
    shape = (500, 375) if images.shape[1] >= 128 else (100, 75)

    def write(i: int) -> None:
        enlarged = Image.fromarray(images[i]).resize(shape, Image.Resampling.BICUBIC)
        enlarged.save(folder / f"{i:06d}.jpg", quality=90)

    with ThreadPoolExecutor() as threads:
        for _ in threads.map(write, range(len(images))):
            pass


def run(encoder, head, folder, labels, rows, validation, batch_size, n_known, clock) -> None:
    device = encoder.device
    model = nn.Sequential(encoder.trunk, encoder.tail, head)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9
    )
    workers = n_workers(encoder.input_format.size, batch_size) if device.type == "cuda" else 0

    def loader(rows: np.ndarray, n_views: int, *, shuffle: bool) -> DataLoader:
        data = Files(folder, rows, encoder.input_format, n_views)
        return DataLoader(
            data,
            batch_size,
            shuffle=shuffle,
            num_workers=workers,
            drop_last=shuffle,
            pin_memory=False,
        )

    def embed(rows: np.ndarray, n_views: int) -> torch.Tensor:
        with torch.no_grad():
            parts = [
                model(views.flatten(0, 1).to(device)).cpu()
                for views, _ in loader(rows, n_views, shuffle=False)
            ]
        return torch.cat(parts)

    def epoch_of_steps(bank: torch.Tensor) -> None:
        for views, index in loader(rows, 2, shuffle=True):
            v = model(torch.cat([views[:, 0], views[:, 1]]).to(device))
            near = (
                (v.detach().cpu() @ bank.T).topk(9, dim=1).indices[:, 1:]
            )  # on the CPU, in float32
            z = F.normalize(0.5 * v + 0.5 * bank[near].mean(dim=1).to(device), dim=1)
            own = torch.from_numpy(labels[index.numpy()]).repeat(2).to(device)
            loss = 0.65 * slow_contrast(z, 0.25) + 0.35 * slow_supervised(v, own, 0.07)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

    bank = clock("bank", lambda: embed(rows, 2))
    clock("training", lambda: epoch_of_steps(bank))
    embeddings = clock("validation embedding", lambda: embed(validation, 0))
    clock("tree and K", lambda: slow_sweep(embeddings.numpy(), labels[validation], n_known))


def simgcd_epoch(
    encoder: Encoder, n_clusters: int, folder: Path, labels: np.ndarray, *, batch_size: int
) -> None:
    """Train SimGCD on every file of a folder once: decoded for each view, in float32, the loss read after each step."""
    device = encoder.device
    network = nn.Sequential(encoder.trunk, encoder.tail)
    head = nn.Sequential(
        *(
            nn.Linear(encoder.feature_dim, 2048),
            nn.GELU(),
            nn.Linear(2048, 2048),
            nn.GELU(),
            nn.Linear(2048, 256),
        )
    ).to(device)
    outputs = nn.Parameter(0.02 * torch.randn(n_clusters, encoder.feature_dim, device=device))
    trained = [p for p in (*network.parameters(), *head.parameters(), outputs) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    workers = n_workers(encoder.input_format.size, batch_size) if device.type == "cuda" else 0
    data = Files(folder, np.arange(len(labels)), encoder.input_format, 2)
    for views, index in DataLoader(
        data, batch_size, shuffle=True, num_workers=workers, drop_last=True
    ):
        features = network(torch.cat([views[:, 0], views[:, 1]]).to(device))
        own = torch.from_numpy(labels[index.numpy()]).repeat(2).to(device)
        cosines = F.normalize(features, dim=1) @ F.normalize(outputs, dim=1).T
        loss = slow_classification(cosines, own)
        projected = F.normalize(head(features), dim=1)
        loss = (
            loss
            + 0.65 * slow_contrast(projected, 1.0)
            + 0.35 * slow_supervised(projected, own, 0.07)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def slow_classification(cosines: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """SimGCD's: the other view's sharpened prediction, an even mean prediction, and the given labels."""
    first, second = (cosines.detach() / 0.04).softmax(dim=1).chunk(2)
    predicted = (cosines / 0.1).log_softmax(dim=1)
    taught = -(torch.cat([second, first]) * predicted).sum(dim=1).mean()
    mean = predicted.exp().mean(dim=0)
    spread = (mean * mean.log()).sum()
    known = labels >= 0
    classified = F.nll_loss(predicted[known], labels[known]) if known.any() else 0.0
    return 0.65 * (taught + spread) + 0.35 * classified


def n_workers(side: int, batch_size: int) -> int:
    """One per core up to 16, as many as the shared memory has room for: each holds up to two batches of two views."""
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


def slow_sweep(embeddings: np.ndarray, labels: np.ndarray, n_known: int) -> int:
    """scipy's tree; for K = known + 1, + 2, … a cut and a matching, until 50 in a row are no better."""
    tree = linkage(embeddings, "ward")
    best = -1.0
    best_k = n_known
    since = 0
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
