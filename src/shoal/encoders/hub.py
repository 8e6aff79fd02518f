"""The transformers library: imported past a broken torchvision, asked for models, never for
anything that runs code."""

import hashlib
import importlib
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

from shoal.encoders.architectures import architecture_of
from shoal.encoders.vision import InputFormat
from shoal.encoders.weights import in_a_line, why_unreadable
from shoal.errors import MissingError, ShoalError
from shoal.progress import Progress
from shoal.words import first_few

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DINO_HEAD_DIM = 64  # channels of an attention head in every DINO ViT; the file does not say
REACH_S = 2.5
"""Seconds that the hub may take to answer; its own client would try for half a minute."""

ASKED = {"output_loading_info": True, "ignore_mismatched_sizes": True, "dtype": "float32"}
"""How models are built: what was missing or of another shape is checked afterwards, and half
precision is widened, as the tail is trained."""

TABLES = (
    "position_ids",
    "relative_position_index",
    "relative_coords_table",
    "attn_mask",
    "inv_freq",
)
"""Names of what older versions of the library wrote into files although a model computes it."""

HEADS = (
    "classifier",
    "head",
    "fc",
    "decoder",
    "pooler",
    "text",
    "logit",
    "projection",
    "predictor",
)
"""Parts of names of weights that files carry beside an encoder's own: what it was trained with, or
is used for."""

WEIGHTS = "model.safetensors"
DOWNLOADED = (WEIGHTS, "config.json")
"""Files that are downloaded, none of which can hold code. A folder counts as an encoder's once
config.json is there."""

WEIGHT_FILES = (
    WEIGHTS,
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def import_transformers() -> ModuleType:
    """Import transformers, even beside a torchvision that was built for another torch.

    Such a torchvision raises when it is imported, and transformers, which only looks whether it is
    installed, then fails to import every vision model. Shoal does not use it, so it is hidden when
    it cannot be imported.
    """
    if "transformers" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except Exception:  # ImportError when absent; RuntimeError or OSError for another torch
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None  # type: ignore[assignment]
    return importlib.import_module("transformers")


def is_cached(hub_id: str) -> bool:
    """Whether a hub model's config and weights are in the local cache of the hub; asks no
    network."""
    from huggingface_hub import try_to_load_from_cache

    def is_here(name: str) -> bool:
        return isinstance(try_to_load_from_cache(hub_id, name), str)

    return is_here("config.json") and any(map(is_here, WEIGHT_FILES))


def is_told_offline() -> bool:
    """Whether the environment forbids downloads."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def why_offline() -> str | None:
    """Why nothing can be downloaded, in words; None when the hub answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except Exception as error:  # a dozen kinds, by the transport in use
        return f"{constants.ENDPOINT} cannot be reached ({in_a_line(error, 80)})"
    return None


def download_size(hub_id: str) -> int:
    """The bytes of the files that `download` would fetch."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    with _explained_download(hub_id):
        found = [get_hf_file_metadata(hf_hub_url(hub_id, name)) for name in DOWNLOADED]
    return sum(file.size or 0 for file in found)


def download(hub_id: str, folder: Path, progress: Progress) -> str:
    """Fetch a model's weights and configuration into a folder; the SHA-256 of the weights.

    A connection that breaks is taken up where it broke. Weights without the hub's checksum are not
    kept.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """Tells `progress` what the hub's client shows."""

        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **(options | {"disable": False}))

        def display(self, *_: object, **__: object) -> None:
            progress(int(self.n), int(self.total or 0))

    with _explained_download(hub_id):
        for name in DOWNLOADED:
            hf_hub_download(hub_id, name, local_dir=folder, tqdm_class=Bar)
        etag = get_hf_file_metadata(hf_hub_url(hub_id, WEIGHTS)).etag or ""
    with (folder / WEIGHTS).open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    # The hub's client does not look at it. Of large files, and only of these, it is the checksum.
    if re.fullmatch("[0-9a-f]{64}", etag) and etag != sha256:
        remove_download(folder)
        raise MissingError(
            f"{hub_id}: what came is not what the hub announced (SHA-256 {sha256[:16]}…, expected "
            f"{etag[:16]}…), so it was thrown away; give the command again"
        )
    return sha256


def remove_download(folder: Path) -> None:
    """Remove what `download` has written."""
    for name in DOWNLOADED:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / ".cache", ignore_errors=True)


@contextmanager
def _explained_download(hub_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the client, of its transport, of the disk
        raise MissingError(
            f"{hub_id}: {' or '.join(DOWNLOADED)} cannot be downloaded ({in_a_line(error, 200)}). "
            "Only safetensors are fetched, because opening other formats can run code: "
            f"`hf download {hub_id}` fetches what there is"
        ) from error


def load_model(source: str, *, offline: str | None) -> "PreTrainedModel":
    """Build a vision model of the transformers library from a folder or a hub id, with its weights.

    Where `offline` says why nothing is downloaded, only files on this machine are used. Weights
    that do not fill the model, or of which some have no place in it, are an error.
    """
    transformers = import_transformers()
    asked = {"trust_remote_code": False, "local_files_only": offline is not None}
    try:
        with _quiet(transformers), _connected(offline is None):
            config = transformers.AutoConfig.from_pretrained(source, **asked)
            kind = getattr(transformers, architecture_of(config).model_class)
            model, info = kind.from_pretrained(source, **ASKED, **asked)
    except ShoalError:
        raise
    except Exception as error:  # OSError, ValueError, SafetensorError, hub and connection errors
        raise MissingError(_why_not_loaded(source, error, offline)) from error
    _check_loaded(source, info, model, HEADS)
    return model


def build_dino(
    weights: Mapping[str, Tensor], where: str, *, n_heads: int | None = None
) -> "PreTrainedModel":
    """Build transformers' ViT around weights already renamed (`rename_dino`); its sizes are read
    off the shapes.

    Every tensor must be one of it: a file with more is that of another ViT.
    """
    transformers = import_transformers()
    try:
        config = _dino_config(transformers, weights, n_heads)
        with _quiet(transformers):
            model, info = transformers.ViTModel.from_pretrained(
                None, config=config, state_dict=dict(weights), add_pooling_layer=False, **ASKED
            )
    except Exception as error:  # a KeyError names the tensor that is missing
        raise MissingError(
            f"{where}: not the weights of a DINO ViT, or not all of them "
            f"({type(error).__name__}: {in_a_line(error, 160)})"
        ) from error
    _check_loaded(where, info, model, heads=())
    return model


def _dino_config(
    transformers: ModuleType, weights: Mapping[str, Tensor], n_heads: int | None
) -> "PretrainedConfig":
    width = weights["embeddings.cls_token"].shape[-1]
    patch = weights["embeddings.patch_embeddings.projection.weight"].shape[-1]
    n_patches = weights["embeddings.position_embeddings"].shape[1] - 1
    # And not how many are whole: a layer with a piece missing is there too.
    layers = [re.match(r"encoder\.layer\.(\d+)\.", name) for name in weights]
    last = max(int(layer[1]) for layer in layers if layer is not None)
    if n_heads is None and width % DINO_HEAD_DIM:
        raise ValueError(f"it is {width} channels wide, expected a multiple of {DINO_HEAD_DIM}")
    return transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=1 + last,
        num_attention_heads=n_heads or width // DINO_HEAD_DIM,
        intermediate_size=weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        image_size=round(n_patches**0.5) * patch,
        patch_size=patch,
        layer_norm_eps=1e-6,  # DINO's own; transformers' converted copy has 1e-12
    )


def read_input_format(
    source: str, config: "PretrainedConfig", *, offline: str | None
) -> InputFormat:
    """Read size, mean and std from the model's preprocessor file; without one they are unknown, an
    error.

    The model sees (scale x + offset - mean) / std; mean and std are solved for images x in [0, 1].
    """
    try:
        with _connected(offline is None):
            processor = importlib.import_module("transformers.image_processing_base")
            found, _ = processor.ImageProcessingMixin.get_image_processor_dict(
                source, local_files_only=offline is not None
            )
        mean = [0.0, 0.0, 0.0]
        std = [1.0, 1.0, 1.0]
        is_bgr = bool(found.get("do_flip_channel_order"))
        if found.get("do_normalize", "do_flip_channel_order" not in found) is not False:
            mean = found["image_mean"]
            std = found["image_std"]
        scale = 255.0
        if found.get("do_rescale") is not False:
            scale *= float(found.get("rescale_factor", 1 / 255))
        offset = float(bool(found.get("rescale_offset")))
        red, green, blue = ((float(value) + offset) / scale for value in mean)
        spread_red, spread_green, spread_blue = (float(value) / scale for value in std)
    except Exception as error:  # no file, no JSON, no numbers
        raise MissingError(
            f"{source}: no preprocessor_config.json with image_mean and image_std "
            f"({type(error).__name__}), so the input format is unknown; add that file beside "
            "config.json"
        ) from error
    own_size = getattr(config, "image_size", 224)
    size = found.get("crop_size") or found.get("size") or own_size
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or own_size
    if isinstance(size, list):
        size = size[0]
    return InputFormat(
        size=int(size),
        mean=(red, green, blue),
        std=(spread_red, spread_green, spread_blue),
        is_bgr=is_bgr,
    )


def _check_loaded(
    where: str, info: Mapping[str, list[str]], model: "PreTrainedModel", heads: tuple[str, ...]
) -> None:
    """Refuse weights that leave part of the model at random, or that are more than it uses;
    transformers only warns.

    Only what no feature depends on may be missing. Beside the model's own parts a file may hold
    the `heads` that it was trained with.
    """
    known = architecture_of(model.config)
    parts = dict(model.named_children())

    def is_used(name: str) -> bool:
        return not any(part in name for part in known.unused)

    def comes_along(name: str) -> bool:
        part, *inner = name.removeprefix(f"{model.base_model_prefix}.").split(".")
        is_inside = bool(inner) and part in parts
        is_head = not is_inside and any(head in part for head in heads)
        return is_head or name.endswith(TABLES)

    # Of another shape: a name, or a name with the two shapes.
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    missing = [name for name in info["missing_keys"] if not name.startswith(known.plain)]
    extra = [name for name in info["unexpected_keys"] if not name.startswith(known.along)]
    wrong = sorted(filter(is_used, mismatched + missing))
    strange = sorted(name for name in extra if is_used(name) and not comes_along(name))
    if wrong or strange:
        what = "are missing or of another shape" if wrong else "have no place in it"
        raise MissingError(
            f"{where}: the weights do not fit the architecture, {len(wrong or strange)} tensors "
            f"{what} ({first_few(wrong or strange)}); use the weights made for this model"
        )


def _why_not_loaded(source: str, error: Exception, offline: str | None) -> str:
    reason = in_a_line(error, 200)
    if Path(source).is_dir() or "custom code" in reason:
        return f"{source}: {why_unreadable(error)}"
    if offline is None:
        return (
            f"{source}: the hub has no such model, or breaks off ({reason}); check the id, or give "
            "a local folder"
        )
    return (
        f"{source}: not on this machine, and {offline}; run `hf download {source} --local-dir "
        "FOLDER` where there is a network, bring FOLDER here and give its path as the encoder"
    )


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Keep progress bars, load reports and the hub's retries off the terminal, and put the settings
    back."""
    hub = logging.getLogger("huggingface_hub")
    own = transformers.utils.logging
    level = hub.level
    verbosity = own.get_verbosity()
    had_bar = own.is_progress_bar_enabled()
    hub.setLevel(logging.ERROR)
    own.set_verbosity_error()
    own.disable_progress_bar()
    try:
        yield
    finally:
        hub.setLevel(level)
        own.set_verbosity(verbosity)
        if had_bar:
            own.enable_progress_bar()


@contextmanager
def _connected(is_connected: bool) -> Iterator[None]:
    """Unless connected, keep the hub's client from any connection: it makes some of its own for
    local files too."""
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = was_offline or not is_connected
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline
