"""Load models of the transformers library, from a folder or from the Hugging Face hub.

No code that comes with a model is ever run.
"""

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from shoal.encoders.splitting import architecture_of
from shoal.encoders.vision import InputFormat
from shoal.encoders.weights import why_unreadable
from shoal.errors import MissingError, first_few, one_line
from shoal.settings import from_dict

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Seconds to wait for the hub; its own client would try for half a minute
TIMEOUT_S = 2.5

# Ends of the names of buffers that older versions of transformers saved although a model computes
# them
COMPUTED = (
    "position_ids",
    "relative_position_index",
    "relative_coords_table",
    "attn_mask",
    "inv_freq",
)

# What a preprocessor must do, if it mentions it
USUAL = {
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "rescale_offset": False,
    "do_normalize": True,
    "do_flip_channel_order": False,
}

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def import_transformers() -> ModuleType:
    """Import transformers, even if the installed torchvision was built for another torch.

    Such a torchvision raises when it is imported, and transformers, which only checks that it is
    installed, then fails to import every vision model. Shoal does not use torchvision, so it is
    hidden if it cannot be imported.
    """
    if "transformers" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except Exception:  # ImportError if absent; RuntimeError or OSError for another torch
            sys.modules["torchvision"] = None  # type: ignore[assignment]
    return importlib.import_module("transformers")


def is_cached(hub_id: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(hub_id, name), str) for name in WEIGHT_FILES)


def why_offline() -> str | None:
    """Return why nothing can be downloaded, or None if the hub responds."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except Exception as error:  # its type depends on the transport
        return f"{constants.ENDPOINT} cannot be reached ({one_line(error, 80)})"
    return None


def load_model(source: str, *, offline: str | None) -> "PreTrainedModel":
    """Load a vision model of transformers with its weights, from a folder or by its hub id.

    `offline` is the reason to use only files on this machine, or None. Missing, unexpected and
    mismatched weights raise an error.
    """
    transformers = import_transformers()
    options = {"trust_remote_code": False, "local_files_only": offline is not None}
    try:
        with _quiet(transformers, offline):
            config = transformers.AutoConfig.from_pretrained(source, **options)
            kind = getattr(transformers, architecture_of(config).model_class)
            model, info = kind.from_pretrained(
                source,
                output_loading_info=True,
                dtype="float32",  # the tail is trained
                **options,
            )
    except Exception as error:  # OSError, ValueError, SafetensorError, hub and connection errors
        message = f"{source}: {why_unreadable(error)}"
        if offline is not None and not Path(source).is_dir():
            message += (
                f". It was not downloaded, because {offline}: run `hf download {source} "
                "--local-dir FOLDER` with network access, and give FOLDER as the encoder"
            )
        raise MissingError(message) from error
    _check_loaded(source, info, model)
    return model


def read_input_format(
    source: str, config: "PretrainedConfig", *, offline: str | None
) -> InputFormat:
    """Read size, mean and std from a model's preprocessor file; raise an error if there is none, or
    if it describes another computation than (image - mean) / std for images in [0, 1]."""
    transformers = import_transformers()
    try:
        with _quiet(transformers, offline):
            processor = transformers.image_processing_base.ImageProcessingMixin
            found, _ = processor.get_image_processor_dict(
                source, local_files_only=offline is not None
            )
        size = found.get("crop_size") or found.get("size") or getattr(config, "image_size", 224)
        if isinstance(size, dict):
            size = next(iter(size.values()))  # the height, or the shortest edge
        for name, usual in USUAL.items():
            if found.get(name, usual) not in (usual, None):
                raise ValueError(f"{name} is {found[name]}")
        return from_dict(
            InputFormat,
            {"size": int(size), "mean": found["image_mean"], "std": found["image_std"]},
        )
    except Exception as error:  # no file, no JSON, no numbers
        raise MissingError(
            f"{source}: its preprocessor_config.json must have image_mean and image_std of images "
            f"in [0, 1] and nothing unusual ({one_line(error, 80)}); correct that file, or use "
            "another model"
        ) from error


def _check_loaded(source: str, info: Mapping[str, list[str]], model: "PreTrainedModel") -> None:
    """Refuse weights that leave parts of the model randomly initialized, or have unknown parts.

    transformers only warns. A file may lack parts that no feature depends on, and may contain heads
    and decoders that the model does not have.
    """
    unused = architecture_of(model.config).unused
    parts = dict(model.named_children())

    def is_inside(name: str) -> bool:
        part = name.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
        return part in parts and not name.endswith(COMPUTED)

    wrong = [*info["missing_keys"], *filter(is_inside, info["unexpected_keys"])]
    wrong = sorted(name for name in wrong if not any(part in name for part in unused))
    if wrong:
        raise MissingError(
            f"{source}: the weights do not fit the architecture: {len(wrong)} tensors are missing "
            f"or superfluous ({first_few(wrong)}); use the weights of this model"
        )


@contextmanager
def _quiet(transformers: ModuleType, offline: str | None) -> Iterator[None]:
    """Hide progress bars, load reports and the hub's retries; if offline, keep its client so.

    It sends requests for local files too.
    """
    from huggingface_hub import constants

    library_log = transformers.utils.logging
    had_bar = library_log.is_progress_bar_enabled()
    was_offline = constants.HF_HUB_OFFLINE
    level = logging.root.manager.disable
    library_log.disable_progress_bar()
    logging.disable(logging.WARNING)
    constants.HF_HUB_OFFLINE = was_offline or offline is not None
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline
        logging.disable(level)
        if had_bar:
            library_log.enable_progress_bar()
