"""The transformers library: imported past a broken torchvision, asked for models, never for anything that runs code."""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.encoders.vision import InputFormat
from shoal.errors import MissingError, UsageError

DINO_HEAD_DIM = 64  # channels of an attention head in every DINO ViT; the file does not say
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def import_transformers() -> Any:
    """Import transformers, even beside a torchvision that was built for another torch.

    Such a torchvision raises when it is imported, and transformers, which only looks whether it is installed, then
    fails to import every vision model. Shoal does not use it, so it is hidden when it cannot be imported.
    """
    if "transformers" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except Exception:  # ImportError when absent; RuntimeError or OSError when it belongs to another torch
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None  # type: ignore[assignment]
    return importlib.import_module("transformers")


def is_cached(hub_id: str) -> bool:
    """Whether a hub model's config and weights are in the local cache of the hub; asks no network."""
    from huggingface_hub import try_to_load_from_cache

    files = {name: try_to_load_from_cache(hub_id, name) for name in ("config.json", *WEIGHT_FILES)}
    here = {name for name, path in files.items() if isinstance(path, str)}
    return "config.json" in here and len(here) > 1


def load_model(source: str, *, may_download: bool) -> Any:
    """Build a vision model of the transformers library from a folder or a hub id, with its weights.

    Without `may_download` only files on this machine are used. Weights that do not fill the model are an error.
    """
    transformers = import_transformers()
    local = {"local_files_only": not may_download or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")}
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, **local)
            kind = _model_class(transformers, config)
            model, info = kind.from_pretrained(source, trust_remote_code=False, output_loading_info=True, **local)
    except (UsageError, MissingError):
        raise
    except Exception as error:  # OSError, ValueError, SafetensorError, hub and connection errors
        raise MissingError(_why_not_loaded(source, error, is_local=local["local_files_only"])) from error
    _check_loaded(source, info)
    return model


def build_dino(weights: Mapping[str, Tensor], where: str, *, n_heads: int | None = None) -> Any:
    """Build transformers' ViT around weights already renamed (`rename_dino`); its sizes are read off the shapes."""
    transformers = import_transformers()
    width = weights["embeddings.cls_token"].shape[-1]
    patch = weights["embeddings.patch_embeddings.projection.weight"].shape[-1]
    n_patches = weights["embeddings.position_embeddings"].shape[1] - 1
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=sum(name.endswith("layernorm_before.weight") for name in weights),
        num_attention_heads=n_heads or max(1, width // DINO_HEAD_DIM),
        intermediate_size=weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        image_size=round(n_patches**0.5) * patch,
        patch_size=patch,
        layer_norm_eps=1e-6,  # DINO's own; transformers' converted copy has 1e-12
    )
    try:
        with _quiet(transformers):
            model, info = transformers.ViTModel.from_pretrained(
                None, config=config, state_dict=dict(weights), add_pooling_layer=False, output_loading_info=True
            )
    except Exception as error:
        raise MissingError(f"{where}: not the weights of a DINO ViT ({' '.join(str(error).split())[:160]})") from error
    _check_loaded(where, info)
    return model


def read_input_format(source: str, config: Any, *, may_download: bool) -> InputFormat:
    """Read size, mean and std from the model's preprocessor_config.json; without one they are unknown, an error."""
    from huggingface_hub import hf_hub_download

    name = "preprocessor_config.json"
    try:
        is_folder = Path(source).is_dir()
        path = Path(source) / name if is_folder else hf_hub_download(source, name, local_files_only=not may_download)
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        mean, std = tuple(map(float, found["image_mean"])), tuple(map(float, found["image_std"]))
    except Exception as error:
        raise MissingError(
            f"{source}: no {name} with image_mean and image_std ({type(error).__name__}), so the input format is "
            "unknown; add that file beside config.json"
        ) from error
    size = found.get("crop_size") or found.get("size") or getattr(config, "image_size", 224)
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or getattr(config, "image_size", 224)
    return InputFormat(size=int(size), mean=mean, std=std)  # type: ignore[arg-type]


def _model_class(transformers: Any, config: Any) -> Any:
    if config.model_type in ("clip", "clip_vision_model"):
        return transformers.CLIPVisionModel
    return transformers.AutoModel


def _check_loaded(where: str, info: Mapping[str, Any]) -> None:
    """Refuse weights that leave part of the model at random; transformers only warns."""
    wrong = [*info["mismatched_keys"], *info["missing_keys"]]
    wrong = sorted(str(name) for name in wrong if "pooler" not in str(name) and "mask_token" not in str(name))
    if wrong:
        raise MissingError(
            f"{where}: the weights do not fit the architecture, {len(wrong)} tensors are missing or of another shape "
            f"({', '.join(wrong[:3])}, …); use the weights made for this model"
        )


def _why_not_loaded(source: str, error: Exception, *, is_local: bool) -> str:
    reason = " ".join(str(error).split())[:200]
    if Path(source).is_dir():
        return f"{source}: cannot be loaded as a vision model ({reason}); it may be cut short: download it again"
    if is_local:
        return f"{source}: not on this machine; run `hf download {source}` where there is a network ({reason})"
    return f"{source}: the hub could not be reached or has no such model ({reason}); or give a local folder"


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal, and put its settings back."""
    logging = transformers.utils.logging
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()
