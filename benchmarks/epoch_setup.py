"""What `training.py` trains on what: sizes, networks with random weights, synthetic pictures and labels."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from shoal.encoders.catalog import load_encoder
from shoal.encoders.head import HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.methods.cms import Cms, CmsSettings
from shoal.training.data import TrainingData
from shoal.training.model import shape_of
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import Trainer
from shoal.training.views import ViewSettings

COARSE = 12
"""Side of the noise that a picture is an enlargement of."""

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
    memory_for: tuple[int, ...] = (6_000, 50_000, 127_000)
    """Numbers of images to state the peak memory for."""
    limit_s: float | None = None
    """How long an epoch may take."""
    min_ratio: float | None = None
    """How many times as fast as the straightforward loop it must be."""


GPU = Size(network="vit-b16", limit_s=5.0, min_ratio=10.0)
CPU = Size(
    network="efficientnet-lite2",
    n_images=1800,
    n_validation=360,
    side=146,
    input_size=128,
    limit_s=60.0,
)
REHEARSAL = Size(
    network="vit-tiny",
    n_images=160,
    n_validation=80,
    side=64,
    input_size=56,
    batch_size=32,
    n_classes=8,
    head=HeadSettings(width=64, dim=32, bottleneck=16),
    memory_for=(100, 200),
)


def make_encoder(size: Size) -> Encoder:
    if size.network == "efficientnet-lite2":
        return load_encoder(size.network, input_size=size.input_size)
    transformers = import_transformers()
    small = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    side = size.input_size
    config = transformers.ViTConfig(image_size=side, **({} if size.network == "vit-b16" else small))
    model = transformers.ViTModel(config, add_pooling_layer=False)
    return Encoder(size.network, split_model(model, side), InputFormat(size=side, **IMAGENET), 1)


def make_classes(size: Size) -> np.ndarray:
    """The class of every image, (N,)."""
    return np.random.default_rng(0).integers(0, size.n_classes, size.n_images + size.n_validation)


def make_labels(size: Size) -> np.ndarray:
    """Half of the images are of known classes, half of these are labeled."""
    truth = make_classes(size)
    is_labeled = np.random.default_rng(1).random(len(truth)) < 0.5
    return np.where((truth < size.n_classes // 2) & is_labeled, truth, -1)


def pictures(size: Size) -> np.ndarray:
    """Smooth random pictures, (N, S, S, 3), every one different: half of it its class's pattern, half its own."""
    rng = np.random.default_rng(2)
    classes = make_classes(size)
    patterns = rng.integers(0, 256, size=(size.n_classes, COARSE, COARSE, 3), dtype=np.uint8)
    own = rng.integers(0, 256, size=(len(classes), COARSE, COARSE, 3), dtype=np.uint8)
    coarse = patterns[classes] // 2 + own // 2  # (N, 12, 12, 3)
    made = np.empty((len(classes), size.side, size.side, 3), dtype=np.uint8)

    def enlarge(i: int) -> None:
        made[i] = Image.fromarray(coarse[i]).resize(
            (size.side, size.side), Image.Resampling.BICUBIC
        )

    with ThreadPoolExecutor() as threads:
        for _ in threads.map(enlarge, range(len(made))):
            pass
    return made


def make_trainer(size: Size, device: torch.device, images, labels) -> Trainer:
    encoder = make_encoder(size).to(device)
    views = ViewSettings(pool=size.pool)
    settings = TrainSettings(epochs=3, batch_size=size.batch_size, lr=0.01, views=views)
    validation = np.arange(size.n_images, size.n_images + size.n_validation)
    data = TrainingData(
        pixels=images, labels=labels, validation=validation, trains_on_validation=False
    )
    model = Cms(encoder, CmsSettings(head=size.head, training=settings), shape_of(data, None)).to(
        device
    )
    return Trainer(data, model, settings)
