"""The methods by name, and their recipes: settings as YAML files, by encoder or kind of
benchmark."""

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
    hypcd,
    legogcd,
    orca,
    pim,
    promptcal,
    rankstats,
    simgcd,
    uno,
)
from shoal.methods.method import Method, S, TrainedSettings
from shoal.settings import load_settings

# A folder per method, a file per recipe
RECIPES = Path(__file__).resolve().parent.parent / "recipes"

# The recipe of each benchmark for methods that have none of the benchmark's own name
BENCHMARK_KINDS = {
    "cifar10": "generic",
    "cifar100": "generic",
    "imagenet100": "generic",
    "cub": "fine-grained",
    "cars": "fine-grained",
    "aircraft": "fine-grained",
    "herbarium19": "fine-grained",
}

CLIP = "clip-vitb16"

METHODS: dict[str, Method] = {
    "cms": cms.METHOD,
    "gcd": gcd.METHOD,
    "dccl": dccl.METHOD,
    "gpc": gpc.METHOD,
    "pim": pim.METHOD,
    "simgcd": simgcd.METHOD,
    "legogcd": legogcd.METHOD,
    "hypcd": hypcd.METHOD,
    "orca": orca.METHOD,
    "uno": uno.METHOD,
    "rankstats": rankstats.METHOD,
    "promptcal": promptcal.METHOD,
    "agglomerative": agglomerative.METHOD,
}

DEFAULT_METHOD = "cms"


def get_method(name: str) -> Method:
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


def recipe_names(method: str = DEFAULT_METHOD) -> list[str]:
    get_method(method)
    files = _file_names(method)
    benchmarks = [name for name, kind in BENCHMARK_KINDS.items() if files & {name, kind}]
    return sorted({*files, *benchmarks, *(f"{name}-clip" for name in benchmarks)})


def load_recipe(recipe: str = "default", method: str = DEFAULT_METHOD) -> Any:
    """Return a method's settings from a recipe (name) or a YAML file (path).

    '<benchmark>-clip' is the recipe of a benchmark with CLIP as its encoder, at the learning rate
    of the method's recipe 'clip', if it has one.
    """
    if Path(recipe).suffix in (".yaml", ".yml"):
        return load_settings(get_method(method).settings, recipe)
    if recipe not in recipe_names(method):
        raise UnknownName("recipe", recipe, recipe_names(method))
    benchmark = recipe.removesuffix("-clip")
    name = benchmark
    files = _file_names(method)
    if name not in files:
        name = BENCHMARK_KINDS[benchmark]
    settings = _load_file(method, name)
    if recipe == benchmark:
        return settings
    if "clip" in files:
        lr = _load_file(method, "clip").training.lr
        settings = replace(settings, training=replace(settings.training, lr=lr))
    return replace(settings, encoder=CLIP)


def _file_names(method: str) -> set[str]:
    return {file.stem for file in (RECIPES / method).glob("*.yaml")}


@cache
def _load_file(method: str, recipe: str) -> Any:
    """Return the settings in a file that comes with Shoal; `reproduce` loads each many times."""
    return load_settings(get_method(method).settings, RECIPES / method / f"{recipe}.yaml")


def with_encoder(settings: S, encoder: str) -> S:
    """Return settings for another encoder: the number of trained blocks is that of its catalog
    entry, and an encoder of another family has no pool of views.

    The tokens of a view take 20 kB with the default encoder, and 300 kB with a ViT-B/16.
    """
    if encoder == settings.encoder:
        return settings
    # The family is 'efficientnet' of 'efficientnet-lite2', 'dino' of 'dino-vitb16'.
    is_same_family = encoder.partition("-")[0] == settings.encoder.partition("-")[0]
    if isinstance(settings, TrainedSettings):
        training = settings.training
        if not is_same_family:
            training = replace(training, views=replace(training.views, pool=None))
        settings = replace(settings, n_tail_blocks=None, training=training)
    return replace(settings, encoder=encoder)


def recipe_for(benchmark: str, encoder: str, method: str = DEFAULT_METHOD) -> str:
    """Return the name of a method's recipe for a benchmark with an encoder of DINO's or CLIP's
    family; 'default' for any other encoder."""
    candidates = []
    if encoder.startswith("dino"):
        candidates = [benchmark, "dino"]
    elif encoder.startswith("clip"):
        candidates = [f"{benchmark}-clip", "clip"]
    return next((name for name in candidates if name in recipe_names(method)), "default")
