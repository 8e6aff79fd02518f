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

from shoal.encoders.architectures import architecture_of
from shoal.encoders.vision import InputFormat
from shoal.encoders.weights import why_unreadable
from shoal.errors import MissingError, ShoalError
from shoal.text import one_line
from shoal.words import first_few

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TIMEOUT_S = 2.5
"""Seconds to wait for the hub; its own client would try for half a minute."""

COMPUTED = (
    "position_ids",
    "relative_position_index",
    "relative_coords_table",
    "attn_mask",
    "inv_freq",
)
"""Ends of the names of buffers that older versions of transformers saved although a model computes
them."""

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
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None  # type: ignore[assignment]
    return importlib.import_module("transformers")


def is_cached(hub_id: str) -> bool:
    """Return whether a model's config and weights are in the local cache of the hub."""
    from huggingface_hub import try_to_load_from_cache

    def is_here(name: str) -> bool:
        return isinstance(try_to_load_from_cache(hub_id, name), str)

    return is_here("config.json") and any(map(is_here, WEIGHT_FILES))


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

    `offline` is the reason to use only files on this machine, or None. Missing,
    unexpected and mismatched weights raise an error.
    """
    transformers = import_transformers()
    options = {"trust_remote_code": False, "local_files_only": offline is not None}
    try:
        with _quiet(transformers), _connected(offline is None):
            config = transformers.AutoConfig.from_pretrained(source, **options)
            kind = getattr(transformers, architecture_of(config).model_class)
            model, info = kind.from_pretrained(
                source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_check_loaded` refuses them
                dtype="float32",  # the tail is trained
                **options,
            )
    except ShoalError:
        raise
    except Exception as error:  # OSError, ValueError, SafetensorError, hub and connection errors
        raise MissingError(_why_not_loaded(source, error, offline)) from error
    _check_loaded(source, info, model)
    return model


def read_input_format(
    source: str, config: "PretrainedConfig", *, offline: str | None
) -> InputFormat:
    """Read size, mean and std from a model's preprocessor file; raise an error if there is none.

    The preprocessor computes (scale x - mean) / std for images x in [0, 1]; the returned mean and
    std are divided by scale.
    """
    try:
        with _connected(offline is None):
            processor = importlib.import_module("transformers.image_processing_base")
            found, _ = processor.ImageProcessingMixin.get_image_processor_dict(
                source, local_files_only=offline is not None
            )
        mean = [0.0, 0.0, 0.0]
        std = [1.0, 1.0, 1.0]
        if found.get("do_normalize") is not False:
            mean = found["image_mean"]
            std = found["image_std"]
        scale = 255.0
        if found.get("do_rescale") is not False:
            scale *= float(found.get("rescale_factor", 1 / 255))
        red, green, blue = (float(value) / scale for value in mean)
        std_red, std_green, std_blue = (float(value) / scale for value in std)
    except Exception as error:  # no file, no JSON, no numbers
        raise MissingError(
            f"{source}: no preprocessor_config.json with image_mean and image_std "
            f"({type(error).__name__}), so the input format is unknown; add that file beside "
            "config.json"
        ) from error
    for change in ("do_flip_channel_order", "rescale_offset"):
        if found.get(change):
            raise MissingError(
                f"{source}: its preprocessor has {change}, which is not supported; use another "
                "model"
            )
    model_size = getattr(config, "image_size", 224)
    size = found.get("crop_size") or found.get("size") or model_size
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or model_size
    if isinstance(size, list):
        size = size[0]
    return InputFormat(
        size=int(size),
        mean=(red, green, blue),
        std=(std_red, std_green, std_blue),
    )


def _check_loaded(source: str, info: Mapping[str, list[str]], model: "PreTrainedModel") -> None:
    """Refuse weights that leave parts of the model randomly initialized, or have unknown parts.

    transformers only warns. A file may lack parts that no feature depends on, and may contain heads
    and decoders that the model does not have.
    """
    unused = architecture_of(model.config).unused
    parts = dict(model.named_children())

    def is_inside(name: str) -> bool:
        part, *inner = name.removeprefix(f"{model.base_model_prefix}.").split(".")
        return bool(inner) and part in parts and not name.endswith(COMPUTED)

    # An entry is a name, or a name with the two shapes.
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    wrong = [*mismatched, *info["missing_keys"], *filter(is_inside, info["unexpected_keys"])]
    wrong = sorted(name for name in wrong if not any(part in name for part in unused))
    if wrong:
        raise MissingError(
            f"{source}: the weights do not fit the architecture: {len(wrong)} tensors are missing, "
            f"superfluous or of another shape ({first_few(wrong)}); use the weights of this model"
        )


def _why_not_loaded(source: str, error: Exception, offline: str | None) -> str:
    reason = one_line(error, 200)
    if Path(source).is_dir() or "custom code" in reason:
        return f"{source}: {why_unreadable(error)}"
    if offline is None:
        return (
            f"{source}: not on the hub, or the download failed ({reason}); check the id, or give a "
            "local folder"
        )
    return (
        f"{source}: not on this machine, and {offline}; run `hf download {source} --local-dir "
        "FOLDER` with network access, copy FOLDER to this machine and give its path as the encoder"
    )


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Hide progress bars, load reports and the hub's retries, then restore the settings."""
    hub_log = logging.getLogger("huggingface_hub")
    library_log = transformers.utils.logging
    level = hub_log.level
    verbosity = library_log.get_verbosity()
    had_bar = library_log.is_progress_bar_enabled()
    hub_log.setLevel(logging.ERROR)
    library_log.set_verbosity_error()
    library_log.disable_progress_bar()
    try:
        yield
    finally:
        hub_log.setLevel(level)
        library_log.set_verbosity(verbosity)
        if had_bar:
            library_log.enable_progress_bar()


@contextmanager
def _connected(is_connected: bool) -> Iterator[None]:
    """Unless connected, keep the hub's client offline: it sends requests for local files too."""
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = was_offline or not is_connected
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline
