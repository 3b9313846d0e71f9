"""Settings as dataclasses: read from TOML or JSON, changed by ``key.sub=value``, checked by pydantic."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from cnaps.errors import CheckpointError, InputError
from cnaps.files import parse_json, read_bytes

T = TypeVar("T")
MAX_FILE = 1_000_000  # a configuration is text that a person wrote
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_RENAMED = {"teacher": "distillation"}  # settings of 0.1


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


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are checked by pydantic, and whose mistakes are sentences for people."""
    made: Any = pydantic_dataclass(cls, frozen=True, config=_STRICT)
    validate = made.__init__

    @functools.wraps(validate)
    def __init__(self: Any, *arguments: Any, **values: Any) -> None:
        try:
            validate(self, *arguments, **values)
        except ValidationError as error:
            raise InputError(_sentence(cls, error)) from None

    made.__init__ = __init__
    return made


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Settings from a table; every mistake is named by its full key."""
    table = {_RENAMED.get(key, key): value for key, value in table.items()}
    try:  # as JSON, in which lists are tuples and tables are groups, and nothing else is converted
        return TypeAdapter(cls).validate_json(json.dumps(table, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        raise InputError(_sentence(cls, error, where)) from None


def _sentence(cls: type, error: ValidationError, where: str = "") -> str:
    """The first mistake."""
    first = error.errors(include_url=False)[0]
    kind, place, given = first["type"], first["loc"], first["input"]
    key = where + ".".join(map(str, place))
    if kind == "value_error":  # a check of our own: of one setting, or a whole sentence about several
        said = str(first["ctx"]["error"])
        return f"{key} {said}" if said.startswith("must ") else said
    if kind == "unexpected_keyword_argument":
        for part in place[:-1]:
            cls = get_type_hints(cls)[str(part)]
        known = [each.name for each in dataclasses.fields(cls)]
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        group = key.removesuffix(str(place[-1]))
        return f"unknown setting {key}" + (
            f"; did you mean {group}{near[0]}?" if near else f"; known: {', '.join(known)}"
        )
    if kind == "literal_error":
        choices = first["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return f"{key} is {given!r}: choose one of {choices}"
    if kind in ("dataclass_type", "dataclass_exact_type"):
        return f"{key} is a group of settings, not the value {given!r}"
    if kind.endswith("_type"):
        wanted = {"tuple": "a list", "list": "a list", "string": "text", "dict": "a group of settings"}
        name = kind.removesuffix("_type")
        return f"{key} must be {wanted.get(name, f'of type {name}')}, not {given!r}"
    said = first["msg"].replace("Input should", "must").replace("greater than or equal to", "at least")
    return f"{key} {said.replace('greater than', 'above')}, not {given!r}"


def build_saved(cls: type[T], run: Path) -> T:
    """The configuration of an existing run."""
    path = run / "config.json"
    if not path.exists():
        raise CheckpointError(f"{run} is not a run folder (it has no config.json): nothing to resume")
    try:
        return build(cls, read_settings(path))
    except InputError as error:
        raise CheckpointError(f"{path} does not fit this command: {error}") from error
