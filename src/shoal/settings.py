"""Convert settings between YAML and frozen dataclasses; unknown keys are refused.

Settings classes are defined next to the code that uses them. A field's type decides which values
are accepted: int, float, str, bool, Literal, tuples of these, nested dataclasses, and `X | None`.
If a field has the metadata `named_by` and `classes`, the value of the field `named_by` is its key
in YAML and chooses its class: `method: cms` requires a block `cms`.
"""

import dataclasses
import os
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from shoal.errors import UsageError, did_you_mean

Settings = TypeVar("Settings")

# Values by name, as in YAML and JSON
Plain = dict[str, Any]

TYPE_NAMES: dict[object, str] = {
    int: "a whole number",
    float: "a number, such as 0.1 or 5.0e-05",  # YAML 1.1 reads 5e-5 as text
    str: "text",
    bool: "true or false",
}


def load_settings(cls: type[Settings], file: str | os.PathLike[str]) -> Settings:
    """Read a YAML file, such as a run's config.yaml, into settings of class `cls`."""
    return from_dict(cls, read_yaml(file), where=str(file))


def read_yaml(file: str | os.PathLike[str]) -> Any:
    """Return the content of a YAML file; of an empty file, an empty mapping."""
    path = Path(file)
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        found = " ".join(str(error).split())
        raise UsageError(f"{path}: cannot be read as YAML in UTF-8: {found}") from error


def dump_settings(settings: object) -> str:
    """Return settings as YAML, with every field in the order of the class."""
    return yaml.safe_dump(to_dict(settings), sort_keys=False, allow_unicode=True)


def to_dict(settings: Any) -> dict[str, Any]:
    plain = {}
    for field in dataclasses.fields(settings):
        key = field.name
        if "named_by" in field.metadata:
            key = getattr(settings, field.metadata["named_by"])
        plain[key] = _plain(getattr(settings, field.name))
    return plain


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def from_dict(cls: type[Settings], plain: object, *, where: str = "settings") -> Settings:
    """Return settings of class `cls` from a mapping; refuse unknown keys, wrong types and values
    out of range."""
    if not isinstance(plain, Mapping):
        raise UsageError(
            f"{where}: found {plain!r:.60}, expected keys and values of {cls.__name__}"
        )
    accepted = _accepted(cls, plain)
    values = {}
    for key, value in plain.items():
        if key not in accepted:
            raise UsageError(
                f"{where}: unknown setting {str(key)!r}{did_you_mean(str(key), accepted)}"
            )
        name, hint = accepted[key]
        values[name] = convert(hint, value, f"{where}: {key}")
    try:
        settings = cls(**values)
        _check_ranges(settings)
    except (UsageError, TypeError) as error:  # a check in __post_init__, or a field is missing
        raise UsageError(f"{where}: {error}") from error
    return settings


def _accepted(cls: type, plain: Mapping[str, Any]) -> dict[str, tuple[str, object]]:
    """Return the field name and the type for each key that YAML may contain."""
    accepted = {}
    for field in dataclasses.fields(cls):
        key = field.name
        hint = _types(cls)[field.name]
        if "named_by" in field.metadata:
            other = field.metadata["named_by"]
            key = str(plain.get(other, getattr(cls, other)))
            hint = field.metadata["classes"].get(key, type(None)) | None
        accepted[key] = (field.name, hint)
    return accepted


@cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a class, cached because resolving them is slow."""
    return get_type_hints(cls)


def convert(hint: object, value: object, where: str) -> object:
    """Return a value from YAML or JSON as the type `hint`; an error starts with `where`."""
    origin = get_origin(hint)
    args = get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return convert(args[0], value, where)
    if origin is Literal:
        if value in args:
            return value
        raise UsageError(f"{where}: found {value!r:.60}{did_you_mean(str(value), map(str, args))}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: found {value!r:.60}, expected a list")
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(kinds) != len(value):
            raise UsageError(f"{where}: found {len(value)} values, expected {len(kinds)}")
        return tuple(convert(kinds[i], item, f"{where}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=where)  # type: ignore[arg-type]
    is_bool = isinstance(value, bool)
    if hint is float and isinstance(value, int | float) and not is_bool:
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and is_bool == (hint is bool):
        return value
    expected = TYPE_NAMES.get(hint, str(hint))
    raise UsageError(f"{where}: found {value!r:.60}, expected {expected}")


def differences(new: object, old: object) -> list[str]:
    """Return where settings, or nested mappings, differ, such as 'training.epochs: 20, was 10'."""
    return list(_differences(_plain(new), _plain(old), ""))


def _differences(new: object, old: object, name: str) -> Iterator[str]:
    if isinstance(new, list) and isinstance(old, list):
        new = dict(enumerate(new))
        old = dict(enumerate(old))
    if isinstance(new, dict) and isinstance(old, dict):
        for key in {**new, **old}:
            yield from _differences(new.get(key), old.get(key), f"{name}.{key}".lstrip("."))
    elif new != old:
        yield f"{name}: {new!r:.60}, was {old!r:.60}"


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a setting may have; NaN is in no range."""

    expected: str
    contains: Callable[[Any], bool]


Count = Annotated[int, Range("at least 1", lambda value: value >= 1)]
NonNegativeInt = Annotated[int, Range("0 or more", lambda value: value >= 0)]
NonNegative = Annotated[float, Range("0 or more", lambda value: value >= 0)]
Positive = Annotated[float, Range("a number above 0", lambda value: value > 0)]
Fraction = Annotated[float, Range("a number in [0, 1]", lambda value: 0 <= value <= 1)]
BelowOne = Annotated[float, Range("a number in [0, 1)", lambda value: 0 <= value < 1)]
Temperature = Annotated[float, Range("a number in (0, 10], say 0.1", lambda value: 0 < value <= 10)]


def _check_ranges(settings: object) -> None:
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        for valid in getattr(hint, "__metadata__", ()):
            value = getattr(settings, name)
            if not valid.contains(value):
                raise UsageError(f"{name}: found {value}, expected {valid.expected}")
