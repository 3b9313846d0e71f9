"""Settings as dataclasses: read from TOML or JSON, changed by ``key.sub=value``, checked by field."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cnaps.errors import CheckpointError, InputError
from cnaps.files import parse_json, read_bytes

T = TypeVar("T")
MAX_FILE = 1_000_000  # a configuration is text that a person wrote


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read a TOML or JSON file into plain tables."""
    path = Path(path)
    try:
        text = read_bytes(path, MAX_FILE).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration {path} is not UTF-8 text") from error
    except ValueError as error:
        raise InputError(f"{path} is no configuration: {error}") from error
    try:
        table = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the configuration {path} cannot be parsed: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"the configuration {path} is not a table of settings")
    return table


def apply_changes(table: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Set single values: ``optimiser.learning_rate=1e-3``; the value is TOML, or else taken as text.

    >>> apply_changes({"optimiser": {"clip": 1.0}}, ["optimiser.clip=2", "init.model=runs/a"])
    {'optimiser': {'clip': 2}, 'init': {'model': 'runs/a'}}
    """
    result: dict[str, Any] = json.loads(json.dumps(table))
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise InputError(f"cannot understand the setting {change!r}: write it as key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *parents, last = key.strip().split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"cannot set {key}: {parent!r} is a single value, not a group of settings")
        place[last] = value
    return result


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Make a dataclass of a table; every mistake is named by its full key."""
    hints = get_type_hints(cls)
    for key in table:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"; did you mean {where}{near[0]}?" if near else f"; known: {', '.join(hints)}"
            raise InputError(f"unknown setting {where}{key}{hint}")
    return cls(**{key: _convert(hints[key], value, where + key) for key, value in table.items()})


def _convert(kind: Any, value: Any, key: str) -> Any:
    origin, options = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, Mapping):
            return build(kind, value, key + ".")
        raise InputError(f"{key} is a group of settings, not the value {value!r}")
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _convert(next(option for option in options if option is not type(None)), value, key)
    if origin is Literal:
        if value in options:
            return value
        raise InputError(f"{key} is {value!r}: choose one of {', '.join(map(str, options))}")
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(options[0], item, key) for item in value)
        raise InputError(f"{key} must be a list, not {value!r}")
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -1e300 < value < 1e300:
            raise InputError(f"{key} is {value!r}: give a finite number")
        return float(value)
    plain = origin or kind
    if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
        return value
    raise InputError(f"{key} must be of type {plain.__name__}, not {value!r}")


def build_saved(cls: type[T], run: Path) -> T:
    """The configuration of an existing run."""
    path = run / "config.json"
    if not path.exists():
        raise CheckpointError(f"{run} is not a run folder (it has no config.json): nothing to resume")
    try:
        return build(cls, read_settings(path))
    except InputError as error:
        raise CheckpointError(f"{path} does not fit this command: {error}") from error
