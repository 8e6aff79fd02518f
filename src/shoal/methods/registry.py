"""The methods by name, and the recipes: settings of a method as YAML files, by encoder or kind of
benchmark."""

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
from shoal.methods.method import Method, S, TrainedSettings
from shoal.settings import from_dict, load_settings, to_dict

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
"""A folder per method, a file per recipe."""


OF_BENCHMARKS = {
    **dict.fromkeys(("cifar10", "cifar100", "imagenet100"), "generic"),
    **dict.fromkeys(("cub", "cars", "aircraft", "herbarium19"), "fine-grained"),
}
"""The recipe of each benchmark, for methods that have it and none of the benchmark's own name;
'<benchmark>-clip' is the same with CLIP, and with what else a recipe 'clip' of the method has other
than 'dino'."""

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
    if Path(recipe).suffix in (".yaml", ".yml"):
        return load_settings(get_method(method).settings, recipe)
    if recipe not in recipe_names(method):
        raise UnknownName("recipe", recipe, recipe_names(method))
    benchmark = recipe.removesuffix("-clip")
    if benchmark not in OF_BENCHMARKS:
        return _shipped(method, recipe)
    name = benchmark
    if not _file(method, name).is_file():
        name = OF_BENCHMARKS[benchmark]
    settings = _shipped(method, name)
    if recipe == benchmark:
        return settings
    if not _file(method, "clip").is_file():
        return replace(settings, encoder=CLIP)
    dino, clip = (to_dict(_shipped(method, each)) for each in ("dino", "clip"))
    return from_dict(type(settings), _follow(to_dict(settings), dino, clip))


def _file(method: str, recipe: str) -> Path:
    return RECIPES / method / f"{recipe}.yaml"


def _follow(
    plain: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain settings with those values of `new` that are not the ones of `old`."""
    followed = dict(plain)
    for name, value in plain.items():
        if isinstance(value, dict):
            followed[name] = _follow(value, old[name], new[name])
        elif new[name] != old[name]:
            followed[name] = new[name]
    return followed


@cache
def _shipped(method: str, recipe: str) -> Any:
    """The settings in a file that comes with Shoal, read once: a table of the paper asks for each
    many times."""
    return load_settings(get_method(method).settings, _file(method, recipe))


def with_encoder(settings: S, encoder: str) -> S:
    """The settings of a method with another encoder, its own tail and, where it is of another kind,
    new views.

    How many blocks are trained is a matter of the network, and so is whether views can be pooled: a
    view's tokens take 20 kB with the default encoder, and 300 kB with a ViT-B/16.
    """
    if encoder == settings.encoder:
        return settings
    # 'efficientnet' of 'efficientnet-lite2', 'dino' of 'dino-vitb16'
    is_same_kind = encoder.partition("-")[0] == settings.encoder.partition("-")[0]
    if isinstance(settings, TrainedSettings):
        training = settings.training
        if not is_same_kind:
            training = replace(training, views=replace(training.views, pool=None))
        settings = replace(settings, n_tail_blocks=None, training=training)
    return replace(settings, encoder=encoder)


def recipe_for(benchmark: str, encoder: str, method: str = DEFAULT_METHOD) -> str:
    """The recipe made for a benchmark with an encoder of DINO's or CLIP's kind; for any other
    encoder the default."""
    wanted = []
    if encoder.startswith("dino"):
        wanted = [benchmark, "dino"]
    elif encoder.startswith("clip"):
        wanted = [f"{benchmark}-clip", "clip"]
    names = recipe_names(method)
    return next((name for name in wanted if name in names), "default")
