"""The methods by name, and their recipes: settings as YAML files, by encoder or kind of benchmark.

Settings are changed by dotted name, such as 'training.epochs' or 'cms.training.epochs'. A name
without a method in front applies to every method that has the setting, and others ignore it; with a
method in front, it applies to that method alone.

A protocol changes the settings for which this package, the CMS paper and the released code differ.
Selection by hidden labels, as in the released code, is not part of it: only `shoal reproduce` can
do that.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shoal.clustering.n_clusters import DEFAULT_RULE
from shoal.errors import UnknownName, UsageError, did_you_mean
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
from shoal.settings import Plain, from_dict, load_settings, to_dict

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

METHODS: dict[str, Method[Any]] = {
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

PAPER: Plain = {
    "inference.rule": "paper",
    "inference.estimate_shifts": 0,
    "training.max_gradient": None,
    "training.views.pool": None,
}

# Values of settings, by dotted name, for every method that has them. 'shoal' has this package's
# estimate of K; 'paper' the CMS paper's, new views in every step and no gradient clipping;
# 'reference' also the released code's views, which leave colors unchanged. `Method.protocols` adds
# values for losses, heads and banks.
PROTOCOLS: dict[str, Plain] = {
    "shoal": {"inference.rule": DEFAULT_RULE, "inference.estimate_shifts": 1},
    "paper": PAPER,
    "reference": PAPER | {"training.views.jitter": 0.0},
}


def get_method(name: str) -> Method[Any]:
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


def read_pairs(texts: Iterable[str], flag: str, form: str) -> dict[str, str]:
    """Return the values of a repeatable flag that takes 'NAME=VALUE', by name."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise UsageError(f"{flag}: found {text!r}, expected {form}")
        if name in pairs:
            raise UsageError(f"{flag} {name}: found more than once, expected once")
        pairs[name] = value
    return pairs


def read_changes(texts: Iterable[str]) -> Plain:
    """Return the changes that --set gives, with values read as YAML."""
    changes: Plain = {}
    for name, text in read_pairs(texts, "--set", "NAME=VALUE").items():
        try:
            changes[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(
                f"--set {name}: found {text!r}, expected a number, text or list as in YAML"
            ) from error
    return changes


def plain_name(name: str) -> str:
    """Return a dotted name without the method in front."""
    first, _, rest = name.partition(".")
    return rest if rest and first in METHODS else name


def has_setting(method: str, name: str) -> bool:
    return name.removeprefix(f"{method}.") in _setting_names(method)


def change_settings(settings: S, method: str, changes: Plain, *, where: str = "settings") -> S:
    """Return the settings of a method with other values, by dotted name.

    Settings that only other methods have are ignored; names that no method has, and those with this
    method in front that it does not have, are refused.
    """
    plain = to_dict(settings)
    for name, value in changes.items():
        if has_setting(method, name):
            *groups, last = plain_name(name).split(".")
            group = plain
            for part in groups:
                group = group[part]
            group[last] = value
        elif name.startswith(f"{method}.") or not any(
            has_setting(other, name) for other in METHODS
        ):
            raise UsageError(describe_unknown_setting(name, method, where))
    return from_dict(type(settings), plain, where=where)


def describe_unknown_setting(
    name: str, method: str, where: str, *, further: Collection[str] = ()
) -> str:
    """Return a message for a name that is not a setting of a method nor one of `further` names,
    with similar ones."""
    known = {*further, *_setting_names(method)}
    # Groups are often left out: 'epochs' is 'training.epochs'.
    near = {setting for setting in known if setting.endswith(f".{name}")}
    return f"{where}: unknown setting {name!r}{did_you_mean(name, near or known)}"


@cache
def _setting_names(method: str) -> frozenset[str]:
    return frozenset(_dotted(to_dict(get_method(method).settings())))


def _dotted(plain: Plain) -> Iterator[str]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _dotted(value))
        else:
            yield name


def get_protocol(name: str) -> Plain:
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def follow_protocol(settings: S, protocol: str, method: str) -> S:
    """Return the settings of a method with the values of a protocol, and those that the method adds
    to it."""
    added = get_method(method).protocols.get(protocol, {})
    return change_settings(settings, method, {**get_protocol(protocol), **added})
