"""Settings: YAML on one side, frozen dataclasses on the other, nothing unknown in between.

Settings classes live beside the code they set; this file only carries them across. A field's type says what is
accepted: int, float, str, bool, Literal, `X | None`, tuples of these, and dataclasses nested to any depth. A field
with the metadata of `named_by` holds settings whose class, and whose key in YAML, another field names.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from shoal.errors import UsageError, did_you_mean

Settings = TypeVar("Settings")


def named_by(other: str, classes: Callable[[], Mapping[str, type[Any]]]) -> dict[str, Any]:
    """The metadata of a field for settings of the class that the field `other` names; that is its key in YAML too.

    So `method: cms` goes with a block `cms`, and no other block of `classes`.
    """
    return {"named_by": other, "classes": classes}


def load_settings(cls: type[Settings], file: Path | str) -> Settings:
    """Read a YAML file into `cls`; a run's own config.yaml is accepted as it is."""
    return from_dict(cls, read_yaml(file), where=str(Path(file)))


def read_yaml(file: Path | str) -> Any:
    """What a YAML file holds; nothing is an empty mapping."""
    path = Path(file)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file; give the path of a YAML file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return {} if content is None else content


def dump_settings(settings: Any) -> str:
    """Write settings as YAML, every field with its resolved value, in the order of the class."""
    return yaml.safe_dump(to_dict(settings), sort_keys=False, allow_unicode=True)


def to_dict(settings: Any) -> dict[str, Any]:
    """Turn settings into plain dictionaries and lists."""
    return {
        _key(settings, field): _plain(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
    }


def from_dict(cls: type[Settings], plain: Any, *, where: str = "settings") -> Settings:
    """Build `cls` from a mapping; an unknown key or a value of the wrong type is an error that names its place."""
    if not isinstance(plain, Mapping):
        raise UsageError(
            f"{where}: found {show(plain)}, expected keys and values of {cls.__name__}"
        )
    hints = dict(_hints(cls))  # type: ignore[arg-type]  # mypy takes no type[Settings] for hashable
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for field in [field for field in fields.values() if "named_by" in field.metadata]:
        plain, hints[field.name] = _take_named(field, plain, fields, where)
    for key in plain:
        if key not in fields:
            raise UsageError(
                f"{where}: unknown setting {str(key)!r}{did_you_mean(str(key), fields)}"
            )
    values = {
        key: convert(
            hints[key], value, f"{where}: {plain.get(fields[key].metadata.get('named_by'), key)}"
        )
        for key, value in plain.items()
    }
    missing = [name for name, field in fields.items() if name not in values and _is_required(field)]
    if missing:
        raise UsageError(f"{where}: found no value for {', '.join(missing)}")
    try:
        return cls(**values)
    except UsageError as error:  # a check in __post_init__: say which file it came from
        raise UsageError(f"{where}: {error}") from error


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The types of the fields of a class, which take longer to find than its values take to check."""
    return get_type_hints(cls)


def differences(ours: Any, theirs: Any, prefix: str = "") -> list[str]:
    """List the fields in which two settings of one class differ: 'training.epochs: 20, was 10'."""
    changed: list[str] = []
    for field in dataclasses.fields(ours):
        a = getattr(ours, field.name)
        b = getattr(theirs, field.name)
        name = f"{prefix}{_key(ours, field)}"
        if dataclasses.is_dataclass(a) and type(a) is type(b):
            changed += differences(a, b, f"{name}.")
        elif _are_settings(a) and _are_settings(b) and len(a) == len(b):
            for i, (ours_i, theirs_i) in enumerate(zip(a, b, strict=True)):
                changed += differences(ours_i, theirs_i, f"{name}[{i}].")
        elif a != b:
            changed.append(f"{name}: {show(a)}, was {show(b)}")
    return changed


def _are_settings(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(dataclasses.is_dataclass(one) for one in value)
    )


def _key(settings: Any, field: dataclasses.Field[Any]) -> str:
    """What a field is called in YAML."""
    if "named_by" in field.metadata:
        return str(getattr(settings, field.metadata["named_by"]))
    return field.name


def _take_named(
    field: dataclasses.Field[Any],
    plain: Mapping[str, Any],
    fields: Mapping[str, dataclasses.Field[Any]],
    where: str,
) -> tuple[dict[str, Any], Any]:
    """What was found, with the block that another field names under the field's own name; and the type of the block."""
    by = field.metadata["named_by"]
    classes = field.metadata["classes"]()
    name = plain.get(by, fields[by].default)
    for other in classes:
        if other != name and plain.get(other) is not None:
            raise UsageError(
                f"{where}: {other}: found settings of a {by} that is not used; remove them, or set {by}: {other}"
            )
    rest = {key: value for key, value in plain.items() if key not in classes}
    if plain.get(name) is not None and name in classes:
        rest[field.name] = plain[name]
    return rest, classes.get(name, type(None))


def convert(hint: Any, value: Any, where: str) -> Any:
    """Make a value from YAML or JSON one of the type `hint`; an error names its place, `where`."""
    origin = get_origin(hint)
    args = get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is Literal:
        if value in args:
            return value
        raise UsageError(f"{where}: found {show(value)}{did_you_mean(str(value), map(str, args))}")
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint in (int, float) and isinstance(value, bool)):
        return value
    raise UsageError(
        f"{where}: found {show(value)}, expected {_name(hint)}{_exponent_hint(hint, value)}"
    )


def _convert_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    real = [choice for choice in choices if choice is not type(None)]
    for choice in real[:-1]:
        try:
            return convert(choice, value, where)
        except UsageError:
            continue
    return convert(real[-1], value, where)


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where}: found {show(value)}, expected a list")
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        raise UsageError(f"{where}: found {len(value)} values, expected {len(kinds)}")
    return tuple(
        convert(kind, item, f"{where}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _exponent_hint(hint: Any, value: Any) -> str:
    """YAML 1.1 reads 5e-5 as text; say so, because the message 'found "5e-5", expected a number' helps nobody."""
    if hint is float and isinstance(value, str):
        try:
            return f"; write {float(value)!r} with a point and a signed exponent, as in 5.0e-05"
        except ValueError:
            return ""
    return ""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def show(value: Any) -> str:
    """A value as an error quotes it, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def check_numbers(
    settings: Any,
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
