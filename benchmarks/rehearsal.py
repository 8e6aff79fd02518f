"""What accuracy.py and tuning.py are rehearsed with: drawings and a tiny encoder, or a few images of each class."""

import argparse
import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from shoal.data.benchmarks import load_split
from shoal.data.benchmarks.zipped import zip_name
from shoal.files import make_folder


def make_tiny(chosen: argparse.Namespace) -> None:
    """Replace images, encoder and epochs by tiny ones: the rehearsal shows that everything runs, not how well."""
    folder = chosen.out / "rehearsal"
    torch.set_num_threads(1)
    if chosen.worker is None:
        make_stand_in(folder)
    chosen.encoder = str(folder / "vit")
    chosen.data = folder
    chosen.epochs = chosen.cifar_epochs = 1
    chosen.input_size = chosen.cifar_input_size = 32


def make_stand_in(folder: Path, *, n_blocks: int = 3) -> Path:
    """Make drawings in place of the archives' images, and a tiny transformer, whose folder is returned."""
    encoder = folder / "vit"
    make_folder(encoder)
    _save_tiny_encoder(encoder, n_blocks)
    _drawings(folder)
    return encoder


def take_few(chosen: argparse.Namespace) -> None:
    """Copy the first images of each class of the archives into smaller ones, and use these."""
    folder = chosen.out / "few"
    make_folder(folder)
    for name in chosen.datasets:
        for part in ("train", "test"):
            archive = chosen.data / zip_name(name, part)
            if archive.exists():
                _copy_few(archive, folder / archive.name, chosen.per_class)
    chosen.data = folder


def _copy_few(source: Path, target: Path, n_each: int) -> None:
    copied: Counter[str] = Counter()
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as few:
        for member in archive.namelist():
            title = member.rpartition("/")[0]
            copied[title] += 1
            if copied[title] <= n_each:
                few.writestr(member, archive.read(member))


def _save_tiny_encoder(folder: Path, n_blocks: int) -> None:
    from shoal.encoders.hub import import_transformers

    transformers = import_transformers()
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": n_blocks,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    transformers.ViTModel(
        transformers.ViTConfig(image_size=32, patch_size=8, **shape)
    ).save_pretrained(folder)
    colors = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(colors))


def _drawings(folder: Path) -> None:
    """Archives of both benchmarks with a few noisy patterns of each class, for the rehearsal."""
    rng = np.random.default_rng(0)
    for name, archive, n_each in (("cub", "cub200", 3), ("cifar100", "cifar100", 5)):
        classes = load_split(name).class_names
        assert classes is not None
        patterns = np.kron(
            rng.integers(0, 256, size=(len(classes), 8, 8, 3)),
            np.ones((1, 8, 8, 1), dtype=np.int64),
        )
        for part in ("train", "test"):
            with zipfile.ZipFile(folder / f"{archive}-{part}.zip", "w") as file:
                for title, pattern in zip(classes, patterns, strict=True):
                    for i in range(n_each):
                        noise = rng.integers(-60, 61, size=(64, 64, 3))
                        buffer = io.BytesIO()
                        Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).save(
                            buffer, "PNG"
                        )
                        file.writestr(f"{part}/{title}/{i:04d}.png", buffer.getvalue())
