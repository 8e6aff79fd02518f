"""Settings: YAML on one side, frozen dataclasses on the other, nothing unknown in between.

Settings classes live beside the code they set; this file only carries them across. A field's type
says what is accepted: int, float, str, bool, Literal, `X | None`, tuples of these, and dataclasses
nested to any depth. A field with the metadata of `named_by` holds settings whose class, and whose
key in YAML, another field names.
"""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from shoal.errors import UsageError, did_you_mean

Settings = TypeVar("Settings")

TYPE_NAMES: dict[object, str] = {
    int: "a whole number",
    float: "a number, such as 0.1 or 5.0e-05",  # YAML 1.1 reads 5e-5 as text
    str: "text",
    bool: "true or false",
}


def named_by(other: str, classes: Callable[[], Mapping[str, type]]) -> dict[str, object]:
    """The metadata of a field for settings of the class that the field `other` names.

    That is its key in YAML too: `method: cms` goes with a block `cms`, and no other block of
    `classes`.
    """
    return {"named_by": other, "classes": classes}


def load_settings(cls: type[Settings], file: Path | str) -> Settings:
    """Read a YAML file into `cls`; a run's own config.yaml is accepted as it is."""
    return from_dict(cls, read_yaml(file), where=str(Path(file)))


def read_yaml(file: Path | str) -> object:
    """Read a YAML file; an empty one is an empty mapping."""
    path = Path(file)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    return content


def dump_settings(settings: object) -> str:
    """Write settings as YAML, every field with its resolved value, in the order of the class."""
    return yaml.safe_dump(to_dict(settings), sort_keys=False, allow_unicode=True)


def to_dict(settings: Any) -> dict[str, Any]:
    """Turn settings into plain dictionaries and lists."""
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
    """Build `cls` from a mapping; an unknown key or a value of the wrong type is an error."""
    if not isinstance(plain, Mapping):
        raise UsageError(
            f"{where}: found {show(plain)}, expected keys and values of {cls.__name__}"
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
        return cls(**values)
    except (UsageError, TypeError) as error:  # a check in __post_init__, or a field is missing
        raise UsageError(f"{where}: {error}") from error


def _accepted(cls: type, plain: Mapping[str, object]) -> dict[str, tuple[str, object]]:
    """The name and the type of the field that each key of YAML stands for."""
    accepted = {}
    for field in dataclasses.fields(cls):
        key = field.name
        hint = _types(cls)[field.name]
        if "named_by" in field.metadata:
            other = field.metadata["named_by"]
            key = str(plain.get(other, getattr(cls, other)))
            hint = field.metadata["classes"]().get(key, type(None)) | None
        accepted[key] = (field.name, hint)
    return accepted


@cache
def _types(cls: type) -> dict[str, Any]:
    """The types of the fields of a class; finding them takes longer than checking the values."""
    return get_type_hints(cls)


def convert(hint: object, value: object, where: str) -> object:
    """Make a value from YAML or JSON one of the type `hint`; an error names its place, `where`."""
    origin = get_origin(hint)
    args = get_args(hint)
    if origin in (Union, types.UnionType):
        choices = [choice for choice in args if choice is not type(None)]
        if value is None and len(choices) < len(args):
            return None
        for choice in choices[:-1]:
            with suppress(UsageError):
                return convert(choice, value, where)
        return convert(choices[-1], value, where)
    if origin is Literal:
        if value in args:
            return value
        raise UsageError(f"{where}: found {show(value)}{did_you_mean(str(value), map(str, args))}")
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=where)  # type: ignore[arg-type]
    is_bool = isinstance(value, bool)
    if hint is float and isinstance(value, int | float) and not is_bool:
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and is_bool == (hint is bool):
        return value
    expected = TYPE_NAMES.get(hint, str(hint))
    raise UsageError(f"{where}: found {show(value)}, expected {expected}")


def _convert_tuple(args: tuple[object, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where}: found {show(value)}, expected a list")
    if args[-1] is Ellipsis:
        args = args[:1] * len(value)
    if len(args) != len(value):
        raise UsageError(f"{where}: found {len(value)} values, expected {len(args)}")
    pairs = enumerate(zip(args, value, strict=True))
    return tuple(convert(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def differences(ours: object, theirs: object) -> list[str]:
    """List the fields in which two settings of one class differ: 'training.epochs: 20, was 10'."""
    return list(_changes(to_dict(ours), to_dict(theirs), ""))


def _changes(ours: object, theirs: object, name: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from _changes(ours.get(key), theirs.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _changes(one, other, f"{name}[{i}]")
    elif ours != theirs:
        yield f"{name}: {show(ours)}, was {show(theirs)}"


def show(value: object) -> str:
    """A value as an error quotes it, cut short."""
    text = repr(value)
    if len(text) > 60:
        return f"{text[:57]}..."
    return text


def check_numbers(
    settings: object,
    *,
    counts: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    positive: Sequence[str] = (),
    shares: Sequence[str] = (),
    temperatures: Sequence[str] = (),
) -> None:
    """Refuse settings whose numbers, by name, are out of range; NaN is out of every one."""
    ranges: tuple[tuple[Sequence[str], Callable[[float], bool], str], ...] = (
        (counts, lambda value: value >= 1, "at least 1"),
        (not_negative, lambda value: value >= 0, "0 or more"),
        (positive, lambda value: value > 0, "a number above 0"),
        (shares, lambda value: 0 <= value <= 1, "a number in [0, 1]"),
        (temperatures, lambda value: 0 < value <= 10, "a number in (0, 10], say 0.1"),
    )
    for names, is_in_range, expected in ranges:
        for name in names:
            value = getattr(settings, name)
            if not is_in_range(value):
                raise UsageError(f"{name}: found {value}, expected {expected}")
