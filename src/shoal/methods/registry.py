"""The methods by name, and the recipes: settings of a method as YAML files, by encoder or kind of benchmark."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shoal.errors import UnknownName
from shoal.methods import (
    agglomerative,
    cms,
    dccl,
    gcd,
    gpc,
    orca,
    pim,
    promptcal,
    rankstats,
    simgcd,
    uno,
)
from shoal.methods.method import Method
from shoal.settings import from_dict, load_settings, to_dict

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
"""A folder per method, a file per recipe."""


OF_BENCHMARKS = {
    **dict.fromkeys(("cifar10", "cifar100", "imagenet100"), "generic"),
    **dict.fromkeys(("cub", "cars", "aircraft", "herbarium19"), "fine-grained"),
}
"""The recipe of each benchmark, for methods that have it and none of the benchmark's own name; '<benchmark>-clip' is
the same with CLIP, and with what else a recipe 'clip' of the method has other than 'dino'."""

CLIP = "clip-vitb16"

METHODS: dict[str, Method[Any]] = {
    "cms": cms.METHOD,
    "gcd": gcd.METHOD,
    "dccl": dccl.METHOD,
    "gpc": gpc.METHOD,
    "pim": pim.METHOD,
    "simgcd": simgcd.METHOD,
    "orca": orca.METHOD,
    "uno": uno.METHOD,
    "rankstats": rankstats.METHOD,
    "promptcal": promptcal.METHOD,
    "agglomerative": agglomerative.METHOD,
}

DEFAULT_METHOD = "cms"


def get_method(name: str) -> Method[Any]:
    """Look a method up by its name."""
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


def recipe_names(method: str = DEFAULT_METHOD) -> list[str]:
    """The recipes of a method that come with Shoal."""
    get_method(method)
    files = {file.stem for file in (RECIPES / method).glob("*.yaml")}
    benchmarks = [name for name, file in OF_BENCHMARKS.items() if files & {name, file}]
    return sorted({*files, *benchmarks, *(f"{name}-clip" for name in benchmarks)})


def load_recipe(recipe: str = "default", method: str = DEFAULT_METHOD) -> Any:
    """Read the settings of a method from a recipe by name, or from a YAML file by path."""
    if recipe in recipe_names(method):
        benchmark = recipe.removesuffix("-clip")
        is_clip = benchmark in OF_BENCHMARKS and benchmark != recipe
        file = RECIPES / method / f"{benchmark if is_clip else recipe}.yaml"
        if not file.is_file():
            file = file.with_stem(OF_BENCHMARKS[benchmark])
        settings = _shipped(method, file)
        return _with_clip(settings, method) if is_clip else settings
    if Path(recipe).suffix in (".yaml", ".yml"):
        return load_settings(get_method(method).settings, recipe)
    raise UnknownName("recipe", recipe, recipe_names(method))


def _with_clip(settings: Any, method: str) -> Any:
    """The settings of a benchmark with CLIP instead of DINO."""
    dino, clip = (RECIPES / method / f"{name}.yaml" for name in ("dino", "clip"))
    if not clip.is_file():
        return replace(settings, encoder=CLIP)
    changed = _follow(
        *(to_dict(one) for one in (settings, _shipped(method, dino), _shipped(method, clip)))
    )
    return from_dict(type(settings), changed)


def _follow(
    plain: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain settings with those values of `new` that are not the ones of `old`."""
    return {
        name: _follow(value, old[name], new[name])
        if isinstance(value, dict)
        else (value if new[name] == old[name] else new[name])
        for name, value in plain.items()
    }


@cache
def _shipped(method: str, file: Path) -> Any:
    """The settings in a file that comes with Shoal, read once: a table of the paper asks for each many times."""
    return load_settings(get_method(method).settings, file)


def with_encoder(settings: Any, encoder: str) -> Any:
    """The settings of a method with another encoder, its own tail and, where it is of another kind, new views.

    How many blocks are trained is a matter of the network, and so is whether views can be pooled: a view's tokens take
    20 kB with the default encoder, and 300 kB with a ViT-B/16.
    """
    if encoder == settings.encoder:
        return settings
    changed = replace(settings, encoder=encoder)
    if not hasattr(settings, "training"):
        return changed
    training = settings.training
    if _kind(encoder) != _kind(settings.encoder):
        training = replace(training, views=replace(training.views, pool=None))
    return replace(changed, n_tail_blocks=None, training=training)


def _kind(encoder: str) -> str:
    """'efficientnet' of 'efficientnet-lite2', 'dino' of 'dino-vitb16'."""
    return encoder.partition("-")[0]


def recipe_for(benchmark: str, encoder: str, method: str = DEFAULT_METHOD) -> str:
    """The recipe made for a benchmark with an encoder of DINO's or CLIP's kind; for any other encoder the default."""
    family = next((family for family in ("dino", "clip") if encoder.startswith(family)), None)
    wanted = {"dino": [benchmark, "dino"], "clip": [f"{benchmark}-clip", "clip"]}.get(
        family or "", []
    )
    names = recipe_names(method)
    return next((name for name in wanted if name in names), "default")
