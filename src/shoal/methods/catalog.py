"""The methods by name, and the recipes: settings of a method as YAML files, one per benchmark and a default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import UnknownName
from shoal.methods.cms import CmsSettings, cms
from shoal.methods.method import Method
from shoal.settings import load_settings

RECIPES = Path(__file__).resolve().parent.parent / "recipes"


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodInfo:
    """A method, its settings and what it is."""

    run: Method
    settings: type[Any]
    about: str


METHODS: dict[str, MethodInfo] = {
    "cms": MethodInfo(run=cms, settings=CmsSettings, about="contrastive mean-shift learning (CVPR 2024)"),
}

DEFAULT_METHOD = "cms"


def get_method(name: str) -> MethodInfo:
    """Look a method up by its name."""
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


def recipe_names() -> list[str]:
    """The recipes that come with Shoal."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def load_recipe(recipe: str = "default", method: str = DEFAULT_METHOD) -> Any:
    """Read the settings of a method from a recipe by name, or from a YAML file by path."""
    if recipe in recipe_names():
        return load_settings(get_method(method).settings, RECIPES / f"{recipe}.yaml")
    if Path(recipe).suffix in (".yaml", ".yml"):
        return load_settings(get_method(method).settings, recipe)
    raise UnknownName("recipe", recipe, recipe_names())
